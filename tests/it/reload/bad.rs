//! Whatever is wrong with what is loaded: what runs stays as it was.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toolgate::proto::Outcome;

use super::{
    Policies, administrative, edit_config, failed, reload, status, tools, write_policy,
    write_secret,
};
use crate::support::running::{LEDGER, Options, World, call, execute};

/// What is done to the files, and how the reload must fail.
struct Harm {
    about: &'static str,
    /// To the policy directory, and to the directory of the configuration.
    act: fn(&Path, &Path),
    codes: &'static [&'static str],
    pointer: &'static str,
}

const HARMS: &[Harm] = &[
    Harm {
        about: "a tool that is no YAML",
        act: |policy, _| fs::write(policy.join("common.yaml"), "name: [").unwrap(),
        codes: &["NOT_YAML"],
        pointer: "",
    },
    Harm {
        about: "a file that is half written",
        act: |policy, _| {
            let text = fs::read_to_string(policy.join("common.yaml")).unwrap();
            fs::write(policy.join("common.yaml"), &text[..text.len() / 2]).unwrap();
        },
        codes: &["MISSING_FIELD"],
        pointer: "/arguments_schema",
    },
    Harm {
        about: "an open schema",
        act: |policy, _| {
            let text = fs::read_to_string(policy.join("common.yaml")).unwrap();
            let text = text.replace("additionalProperties: false, ", "");
            fs::write(policy.join("common.yaml"), text).unwrap();
        },
        codes: &["OPEN_OBJECT"],
        pointer: "/arguments_schema",
    },
    Harm {
        about: "an upstream that nobody registered",
        act: |policy, _| {
            let text = fs::read_to_string(policy.join("common.yaml")).unwrap();
            fs::write(policy.join("common.yaml"), text.replace("handlers", "other")).unwrap();
        },
        codes: &["UNREGISTERED_UPSTREAM"],
        pointer: "/upstream",
    },
    Harm {
        about: "a directory without a tool is no policy of no tools",
        act: |policy, _| {
            for entry in fs::read_dir(policy).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        },
        codes: &["NO_TOOLS"],
        pointer: "",
    },
    Harm {
        about: "no directory",
        act: |policy, _| fs::remove_dir_all(policy).unwrap(),
        codes: &["UNREADABLE_FILE"],
        pointer: "",
    },
    Harm {
        about: "a configuration that is no YAML",
        act: |_, directory| fs::write(directory.join("toolgate.yaml"), "kind: [").unwrap(),
        codes: &["NOT_YAML"],
        pointer: "",
    },
    Harm {
        about: "no configuration",
        act: |_, directory| fs::remove_file(directory.join("toolgate.yaml")).unwrap(),
        codes: &["UNREADABLE_FILE"],
        pointer: "",
    },
    Harm {
        about: "another listener",
        act: |_, directory| {
            edit_config(directory, "listeners: [\"127.0.0.1:0\"]", "listeners: [\"[::1]:0\"]");
        },
        codes: &["RESTART_NEEDED"],
        pointer: "/listeners",
    },
    Harm {
        about: "another data directory",
        act: |_, directory| edit_config(directory, "directory: data", "directory: other"),
        codes: &["RESTART_NEEDED"],
        pointer: "/data/directory",
    },
    Harm {
        about: "no ledger any more",
        act: |_, directory| edit_config(directory, LEDGER, ""),
        codes: &["RESTART_NEEDED", "RESTART_NEEDED"],
        pointer: "/confirmation",
    },
    Harm {
        about: "another lifetime of tickets",
        act: |_, directory| {
            edit_config(directory, "confirmation: {", "confirmation: {ticket_ttl: 1m, ");
        },
        codes: &["RESTART_NEEDED"],
        pointer: "/confirmation/ticket_ttl",
    },
    Harm {
        about: "another secret of a caller",
        act: |_, directory| {
            write_secret(directory, "proposer", "proposer-Wd7f3kq9zmX2vLr8sNb4Tj61");
        },
        codes: &["RESTART_NEEDED"],
        pointer: "/callers",
    },
    Harm {
        about: "a key that others may read",
        act: |_, directory| {
            let mode = fs::Permissions::from_mode(0o644);
            fs::set_permissions(directory.join("confirmation"), mode).unwrap();
        },
        codes: &["SECRET_REFUSED"],
        pointer: "/confirmation/keys/0/file",
    },
    Harm {
        about: "a short key",
        act: |_, directory| write_secret(directory, "audit", "Vt8xN2kLq5Rz7Wb9"),
        codes: &["SECRET_REFUSED"],
        pointer: "/audit/keys/0/file",
    },
    Harm {
        about: "a well-known key",
        act: |_, directory| {
            write_secret(directory, "confirmation", "please-changeme-please-changeme-1");
        },
        codes: &["SECRET_REFUSED"],
        pointer: "/confirmation/keys/0/file",
    },
    Harm {
        about: "one secret for two purposes",
        act: |_, directory| {
            fs::copy(directory.join("audit"), directory.join("confirmation")).unwrap();
        },
        codes: &["SECRET_REFUSED"],
        pointer: "/callers",
    },
    Harm {
        about: "another secret under the id of a confirmation key",
        act: |_, directory| {
            write_secret(directory, "confirmation", "other-Hd2Jx3vT9pQm6Wk1Zs8Rb5LyMf7");
        },
        codes: &["SECRET_REFUSED"],
        pointer: "/confirmation/keys",
    },
    Harm {
        about: "another secret under the id of an audit key",
        act: |_, directory| write_secret(directory, "audit", "other-Gs3Vt8xN2kLq5Rz7Wb9Jm4Hc6Yd1"),
        codes: &["SECRET_REFUSED"],
        pointer: "/audit/keys",
    },
    Harm {
        about: "no key any more that the journal's records need",
        act: |_, directory| {
            write_secret(directory, "audit-2", "audit-2-Hc6Yd1Gs3Vt8xN2kLq5Rz7Wb9Jm4");
            edit_config(directory, "{id: audit-1, file: audit}", "{id: audit-2, file: audit-2}");
        },
        codes: &["SIGNER_MISSING"],
        pointer: "/audit/keys",
    },
    Harm {
        about: "more keys than there is room for",
        act: |_, directory| {
            let keys: Vec<_> = (0..9)
                .map(|number| {
                    let name = format!("more-{number}");
                    write_secret(
                        directory,
                        &name,
                        &format!("more-{number}-Qk4xV9tNz7LmB2wR8sJ5pHc1Yd"),
                    );
                    format!("{{id: {name}, file: {name}}}")
                })
                .collect();
            edit_config(directory, "{id: confirm-1, file: confirmation}", &keys.join(", "));
        },
        codes: &["LIMIT_OUT_OF_BOUNDS"],
        pointer: "/confirmation/keys",
    },
];

#[tokio::test]
async fn every_kind_of_fault_keeps_what_runs() {
    for harm in HARMS {
        let policies = Policies::new();
        let options = Options { more: LEDGER, persistent: true, ..policies.options() };
        let world = World::start_with(options).await;
        let before = (tools(&world).await, status(&world.channel).await);
        (harm.act)(&policies.directory.path().join("a"), world.directory.path());

        let report = failed(&world, harm.codes).await;
        let pointers: Vec<_> = report.faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert!(pointers.contains(&harm.pointer), "{}: {pointers:?}", harm.about);
        let after = status(&world.channel).await;
        assert_eq!(tools(&world).await, before.0, "{}", harm.about);
        assert_eq!(after.contracts, before.1.contracts, "{}", harm.about);
        assert_eq!(after.keys, before.1.keys, "{}", harm.about);
        assert_eq!(after.policy_since, before.1.policy_since);
        assert!(after.not_ready.is_empty(), "{}: {:?}", harm.about, after.not_ready);
        assert!(world.admin("/readyz").await.starts_with("HTTP/1.1 200"), "{}", harm.about);
        let last = after.last_failed_reload.unwrap();
        assert_eq!(last.faults.len(), harm.codes.len());
        assert_eq!(after.last_reload.unwrap(), last);
        let call = vec![call("c1", "only_a", "{}")];
        let answer = world.client.clone().execute(execute(call)).await.unwrap().into_inner();
        assert_eq!(answer.results[0].outcome(), Outcome::Success, "{}", harm.about);
        let count = async |name, labels: &[_]| world.metric(name, labels).await;
        assert_eq!(count("toolgate_reloads_total", &[("result", "failed")]).await, 1);
        assert_eq!(count("toolgate_last_reload_successful", &[]).await, 0);
        assert_eq!(administrative(world.directory.path()), ["reload failed signal"]);
    }
}

#[tokio::test]
async fn what_is_mended_comes_into_force_and_the_last_failure_stays_in_view() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    fs::write(policies.directory.path().join("a/common.yaml"), "name: [").unwrap();
    failed(&world, &["NOT_YAML"]).await;
    write_policy(&policies.directory.path().join("a"), "a", 7, 1);
    let report = reload(&world.channel).await.unwrap().report.unwrap();
    let status = status(&world.channel).await;
    assert_eq!(status.last_reload.unwrap(), report);
    assert_eq!(status.last_failed_reload.unwrap().faults[0].code, "NOT_YAML");
    assert_eq!(world.metric("toolgate_last_reload_successful", &[]).await, 1);
    let exposition = world.admin("/metrics").await;
    let at = exposition
        .lines()
        .find_map(|line| line.strip_prefix("toolgate_last_reload_success_timestamp_seconds "));
    let since = status.serving_since.unwrap().seconds;
    assert!(at.unwrap().parse::<f64>().unwrap() >= f64::from(u32::try_from(since).unwrap()));
}

#[test]
fn a_directory_without_a_tool_does_not_start() {
    let policies = Policies::new();
    let directory = tempfile::tempdir().unwrap();
    let file = crate::support::running::write_config(
        directory.path(),
        "http://127.0.0.1:1",
        &policies.options(),
    );
    let empty = policies.directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    policies.switch("empty");
    let faults = toolgate::config::load(&file).unwrap_err();
    assert_eq!(faults.as_slice()[0].code.name(), "NO_TOOLS");
    // Limits alone are no tool either.
    fs::copy(policies.directory.path().join("a/policy.yaml"), empty.join("policy.yaml")).unwrap();
    assert_eq!(toolgate::config::load(&file).unwrap_err().as_slice()[0].code.name(), "NO_TOOLS");
}

/// What nobody could look up afterwards does not come into force.
#[tokio::test]
async fn without_a_journal_that_works_nothing_is_put_in_force() {
    let policies = Policies::new();
    let world = World::start_with(policies.options()).await;
    let before = tools(&world).await;
    // The journal's directory is gone: the next segment cannot be made.
    let segments = world.directory.path().join("data/journal/segments");
    fs::remove_dir_all(&segments).unwrap();
    crate::support::running::until("the journal is down", async || {
        let call = vec![call("c1", "common", "{}")];
        drop(world.client.clone().execute(execute(call)).await);
        !status(&world.channel).await.journal_ready
    })
    .await;
    policies.switch("b");
    failed(&world, &["NOT_DURABLE"]).await;
    assert_eq!(tools(&world).await, before);
}
