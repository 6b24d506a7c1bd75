//! Compiles `proto/` without protoc: protox parses, tonic-prost-build generates.

use std::path::PathBuf;
use std::{env, fs};

use protox::prost::Message as _;

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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(FILES)?
        .file_descriptor_set();
    let mut served = descriptors.clone();
    for file in &mut served.file {
        file.service.retain(|service| SERVED.contains(&service.name()));
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("served.descriptors.binpb"), served.encode_to_vec())?;
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    Ok(())
}
