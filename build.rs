//! Compiles `proto/` without protoc: protox parses, tonic-prost-build generates.

use std::path::PathBuf;
use std::{env, fs};

use protox::prost::Message as _;
use protox::prost_reflect::prost_types::FileDescriptorProto;

const FILES: [&str; 6] = [
    "toolgate/v1/types.proto",
    "toolgate/v1/tool_gate.proto",
    "toolgate/v1/tool_handler.proto",
    "toolgate/v1/confirmations.proto",
    "toolgate/v1/audit.proto",
    "toolgate/v1/admin.proto",
];

/// Services that this version serves; each has a file of its own.
const SERVED: [&str; 4] = ["ToolGate", "Confirmations", "Audit", "Admin"];

/// Methods of `ToolGate` that are in the contract, but not served by this version: reflection must not offer them.
const NOT_SERVED: [&str; 1] = ["GetCall"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(FILES)?
        .file_descriptor_set();
    let mut served = descriptors.clone();
    served.file.iter_mut().for_each(keep_served);
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("served.descriptors.binpb"), served.encode_to_vec())?;
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    Ok(())
}

/// Removes services and methods that are not served, with their comments.
fn keep_served(file: &mut FileDescriptorProto) {
    file.service.retain(|service| SERVED.contains(&service.name()));
    let Some(service) = file.service.first_mut() else { return };
    let mut index = -1;
    let mut removed = Vec::new();
    service.method.retain(|method| {
        index += 1;
        let served = !NOT_SERVED.contains(&method.name());
        if !served {
            removed.push(index);
        }
        served
    });
    // A comment names its method by place: service (6) 0, method (2) n of descriptor.proto.
    if let Some(info) = &mut file.source_code_info {
        info.location.retain_mut(|location| {
            let [6, 0, 2, place, ..] = location.path.as_mut_slice() else { return true };
            let before = removed.iter().filter(|removed| *removed < place).count();
            let served = !removed.contains(place);
            *place -= i32::try_from(before).unwrap_or(0);
            served
        });
    }
}
