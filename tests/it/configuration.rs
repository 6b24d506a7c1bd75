//! `check`, `keygen`, `serve` and `--help`, as an operator meets them.

mod faults;
mod jwt;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::process::run_text;
use crate::support::running::{LEDGER, Options, PROPOSER, write_config};

/// Writes a file of this mode, and its directories.
fn write(path: &Path, mode: u32, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_sound_configuration_has_no_faults() {
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), "http://127.0.0.1:7500", &Options::default());
    let (code, out, log) = run_text(["check", text(&config)]);
    assert_eq!((code, log.as_str()), (Some(0), ""), "{out}");
    let head = format!("{}: 5 tools, 0 warnings, no faults; policy digest ", config.display());
    let digest = out.strip_prefix(&head).unwrap_or_else(|| panic!("{out}")).trim_end();
    assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    assert!(!directory.path().join("data").exists(), "check makes nothing");
}

#[test]
fn a_tool_that_needs_the_ledger_asks_for_one() {
    let directory = tempfile::tempdir().unwrap();
    write(
        &directory.path().join("policy/tool.yaml"),
        0o644,
        "apiVersion: toolgate.dev/v1\nkind: Tool\nname: refund.create\ndescription: d\neffect: write\nupstream: handlers\n\
         confirmation: {prompt: 'Refund {/order}?'}\n\
         arguments_schema:\n  type: object\n  additionalProperties: false\n  properties: {order: {type: string, maxLength: 9}}\n",
    );
    let options = Options { policy: "policy".into(), ..Options::default() };
    let config = write_config(directory.path(), "http://127.0.0.1:7500", &options);
    let faults = format!(
        "{}: /ledger: MISSING_FIELD: the tool refund.create needs a ledger, and there is none\n  \
         mend: add ledger: {{kind: embedded, single_replica: true}} and confirmation: {{keys: […]}}\n\
         1 fault: nothing is loaded\n",
        config.display()
    );
    let (code, out, log) = run_text(["check", text(&config)]);
    assert_eq!((code, out.as_str(), log.as_str()), (Some(1), faults.as_str(), ""));
    let (code, out, log) = run_text(["serve", "--config", text(&config)]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(log, format!("toolgate: the configuration has faults\n{faults}"));
    assert!(!directory.path().join("data").exists(), "a gate that does not start leaves nothing");

    let options = Options { more: LEDGER, ..options };
    let config = write_config(directory.path(), "http://127.0.0.1:7500", &options);
    let (code, out, log) = run_text(["check", text(&config)]);
    assert_eq!((code, log.as_str()), (Some(0), ""), "{out}");
    assert!(!directory.path().join("data").exists(), "check makes nothing");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = taken.local_addr().unwrap().to_string();
    let options = Options { listener: Some(listener.clone()), ..Options::default() };
    let config = write_config(directory.path(), "http://127.0.0.1:7500", &options);
    let (code, _, log) = run_text(["serve", "--config", text(&config)]);
    assert_eq!(code, Some(1));
    assert!(log.contains(&format!("toolgate: {listener} cannot be bound: ")), "{log}");
}

#[test]
fn keygen_writes_secrets_that_check_takes_and_never_overwrites_one() {
    let directory = tempfile::tempdir().unwrap();
    let config = write_config(directory.path(), "http://127.0.0.1:7500", &Options::default());
    let (audit, proposer) = (directory.path().join("audit"), directory.path().join("proposer"));
    let (code, out, log) = run_text(["keygen", text(&audit), text(&proposer)]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        log.starts_with(&format!(
            "toolgate: {}: it exists and is not overwritten",
            audit.display()
        )),
        "{log}"
    );
    assert_eq!(fs::read_to_string(&proposer).unwrap(), PROPOSER);

    fs::remove_file(&audit).unwrap();
    fs::remove_file(&proposer).unwrap();
    let (code, out, log) = run_text(["keygen", text(&audit), text(&proposer)]);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    let line = |path: &Path| format!("{}: written, mode 0600\n", path.display());
    assert_eq!(out, line(&audit) + &line(&proposer));
    let secrets = [&audit, &proposer].map(|path| {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::read_to_string(path).unwrap()
    });
    assert!(secrets.iter().all(|secret| secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit())));
    assert_ne!(secrets[0], secrets[1]);
    assert_eq!(run_text(["check", text(&config)]).0, Some(0));

    let nowhere = directory.path().join("none/key");
    let (code, _, log) = run_text(["keygen", text(&nowhere)]);
    assert_eq!(code, Some(1));
    assert!(
        log.starts_with(&format!("toolgate: {}: its directory does not exist", nowhere.display())),
        "{log}"
    );
}

#[test]
fn help_names_every_command_and_wrong_usage_is_told_apart() {
    let (code, out, log) = run_text(["--help"]);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    let commands = [
        "serve",
        "check",
        "keygen",
        "conform",
        "ticket",
        "confirm",
        "ledger",
        "demo",
        "sample-upstream",
    ];
    for command in commands {
        assert!(out.contains(&format!("\n  {command} ")), "{command}: {out}");
        let (code, help, _) = run_text([command, "--help"]);
        assert_eq!(code, Some(0));
        assert!(help.contains(&format!("Usage: toolgate {command}")), "{help}");
    }
    let (code, version, _) = run_text(["--version"]);
    assert_eq!((code, version), (Some(0), format!("toolgate {}\n", env!("CARGO_PKG_VERSION"))));
    for wrong in [&["serve"][..], &["launch"], &["check"], &["keygen"], &[]] {
        let (code, out, log) = run_text(wrong.iter().copied());
        assert_eq!((code, out.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(log.contains("Usage: toolgate"), "{wrong:?}: {log}");
    }
}
