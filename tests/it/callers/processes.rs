//! Callers that are known by their process on the Unix socket.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use tonic::{Code, Request};
use toolgate::app::Running;
use toolgate::config;
use toolgate::proto::ListToolsRequest;
use toolgate::proto::tool_gate_client::ToolGateClient;

use crate::grpc::assert_refused;
use crate::support::running::{
    AUDITOR, Options, PROPOSER, call, channel, context, execute, with_bearer, write_config,
};

/// A user of no other process here.
const NOBODY: u32 = 41_001;

/// Listeners and callers in the place of what [`write_config`] writes.
fn configure(directory: &std::path::Path, listeners: &str, callers: &str) -> std::path::PathBuf {
    let file = write_config(directory, "http://127.0.0.1:1", &Options::default());
    let text = fs::read_to_string(&file).unwrap();
    let text = text
        .replace("[\"127.0.0.1:0\"]", listeners)
        .replace("upstreams:", &format!("{callers}\nupstreams:"));
    fs::write(&file, text).unwrap();
    file
}

fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

#[tokio::test]
async fn a_process_is_a_caller_by_its_user_and_group() {
    let (uid, gid) = own_ids();
    let cases = [
        (format!("{{uid: {uid}}}"), true),
        (format!("{{gid: {gid}}}"), true),
        (format!("{{uid: {uid}, gid: {gid}}}"), true),
        (format!("{{uid: {}}}", uid + 1), false),
        (format!("{{gid: {}}}", gid + 1), false),
        (format!("{{uid: {uid}, gid: {}}}", gid + 1), false),
        (format!("{{uid: {}, gid: {gid}}}", uid + 1), false),
    ];
    for (process, is_known) in cases {
        let directory = tempfile::tempdir().unwrap();
        let callers = format!("- {{role: proposer, process: {process}, tenants: [tenant-1]}}");
        let file = configure(directory.path(), "[unix:gate.sock, 127.0.0.1:0]", &callers);
        let gate = Running::start(config::load(&file).unwrap()).await.unwrap();
        let list = || Request::new(ListToolsRequest { context: Some(context()) });
        let mut socket = ToolGateClient::new(channel(&gate.addresses()[0]).await);
        let answer = socket.list_tools(list()).await;
        assert_eq!(answer.is_ok(), is_known, "{process}");
        if let Err(status) = answer {
            assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
            // A process that is nobody lets a secret speak.
            socket.list_tools(with_bearer(list(), PROPOSER)).await.unwrap();
        } else {
            // Known twice, and not as the same: the secret's proposer has every tenant.
            for secret in [PROPOSER, AUDITOR, "unknown-Tz5kP8rWm2Vx6Yn3Qs9Lb4Hc"] {
                let status = socket.list_tools(with_bearer(list(), secret)).await.unwrap_err();
                assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
            }
        }
        // TCP shows no process.
        let mut tcp = ToolGateClient::new(channel(&gate.addresses()[1]).await);
        let status = tcp.list_tools(list()).await.unwrap_err();
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
}

#[tokio::test]
async fn a_listener_takes_its_own_ways_in_alone() {
    let (uid, _) = own_ids();
    let directory = tempfile::tempdir().unwrap();
    let callers = format!("- {{role: proposer, process: {{uid: {uid}}}}}");
    let listeners = "[{address: unix:process.sock, ways: [process]}, {address: unix:secret.sock, ways: [secret]}]";
    let file = configure(directory.path(), listeners, &callers);
    let gate = Running::start(config::load(&file).unwrap()).await.unwrap();
    let list = || Request::new(ListToolsRequest { context: Some(context()) });
    let mut process = ToolGateClient::new(channel(&gate.addresses()[0]).await);
    let mut secret = ToolGateClient::new(channel(&gate.addresses()[1]).await);
    process.list_tools(list()).await.unwrap();
    secret.list_tools(with_bearer(list(), PROPOSER)).await.unwrap();
    for status in [
        process.list_tools(with_bearer(list(), PROPOSER)).await.unwrap_err(),
        secret.list_tools(list()).await.unwrap_err(),
    ] {
        assert_refused(&status, Code::Unauthenticated, "UNAUTHENTICATED", None);
    }
}

/// Where the other process finds the gate.
const SOCKET: &str = "TOOLGATE_TEST_SOCKET";

/// Runs in a process of another user, for the test below.
#[tokio::test]
#[ignore = "another test runs it as another user"]
async fn as_another_user() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    assert_eq!(own_ids().0, NOBODY);
    let mut client = ToolGateClient::new(channel(&format!("unix:{socket}")).await);
    let bare = client.execute(ungreeted()).await.unwrap_err();
    // It is the auditor, and not the proposer that root is.
    assert_refused(&bare, Code::PermissionDenied, "ROLE_MISSING", None);
    println!("it was the auditor");
}

/// Whether sudo asks for no password.
fn may_become_root() -> bool {
    Command::new("sudo").args(["-n", "true"]).output().is_ok_and(|output| output.status.success())
}

fn ungreeted() -> Request<toolgate::proto::ExecuteRequest> {
    let (_, _, message) = execute(vec![call("c1", "patient", "{}")]).into_parts();
    Request::new(message)
}

#[tokio::test]
async fn another_user_is_another_caller() {
    let (uid, gid) = own_ids();
    if uid != 0 && !may_become_root() {
        assert!(std::env::var_os("CI").is_none(), "this test needs root, and CI skips nothing");
        eprintln!(
            "SKIPPED another_user_is_another_caller: only root can start a process of another user"
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let callers = format!(
        "- {{role: proposer, process: {{uid: {uid}}}}}\n- {{role: auditor, process: {{uid: {NOBODY}}}}}"
    );
    let file = configure(directory.path(), "[unix:gate.sock]", &callers);
    let gate = Running::start(config::load(&file).unwrap()).await.unwrap();
    // Its group may reach the socket, and it may execute the program.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.path().join("gate.sock");
    let program = directory.path().join("client");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = if uid == 0 {
        let mut command = Command::new(&program);
        command.uid(NOBODY).gid(gid);
        command
    } else {
        // The group stays, for the socket's sake; the environment does not pass sudo.
        let mut command = Command::new("sudo");
        command.args(["-n", "setpriv", &format!("--reuid={NOBODY}"), &format!("--regid={gid}")]);
        command.args(["--clear-groups", "env"]).arg(format!("{SOCKET}={}", socket.display()));
        command.arg(&program);
        command
    };
    command.args(["--exact", "callers::processes::as_another_user", "--ignored", "--nocapture"]);
    command.env(SOCKET, &socket);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("it was the auditor"), "{text}");
    let mut own = ToolGateClient::new(channel(&gate.addresses()[0]).await);
    own.execute(ungreeted()).await.unwrap();
}

/// A proposer that confirms is allowed by name alone.
#[tokio::test]
async fn self_confirmation_is_refused_with_the_line_that_would_allow_it() {
    let directory = tempfile::tempdir().unwrap();
    let callers = "- {roles: [proposer, confirmer], process: {uid: 1000}}";
    let file = configure(directory.path(), "[unix:gate.sock]", callers);
    let faults = config::load(&file).unwrap_err().to_string();
    assert!(faults.contains("/callers/4/roles"), "{faults}");
    assert!(faults.contains("add allow_self_confirmation: REASON"), "{faults}");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}\nallow_self_confirmation: a single person's machine\n"))
        .unwrap();
    config::load(&file).unwrap();
    fs::write(&file, format!("{text}\nallow_self_confirmation: ' '\n")).unwrap();
    let faults = config::load(&file).unwrap_err().to_string();
    assert!(faults.contains("/allow_self_confirmation"), "a blank is no reason: {faults}");
}

/// In a user namespace every user that it does not know seems to be this one.
#[tokio::test]
async fn a_number_that_many_users_have_is_no_caller() {
    let directory = tempfile::tempdir().unwrap();
    for (id, is_taken) in [("uid: 65534", false), ("gid: 65534", false), ("uid: 65533", true)] {
        let callers = format!("- {{role: proposer, process: {{{id}}}}}");
        let file = configure(directory.path(), "[unix:gate.sock]", &callers);
        let faults = config::load(&file).err().map(|faults| faults.to_string());
        assert_eq!(faults.is_none(), is_taken, "{id}: {faults:?}");
        let place = format!("/callers/4/process/{}: INVALID_VALUE", &id[..3]);
        assert!(faults.is_none_or(|faults| faults.contains(&place)), "{id}");
    }
}

#[test]
fn what_came_through_no_listener_is_nobodys_whatever_it_shows() {
    use toolgate::domain::caller::{Caller, Role, Tenants};
    use toolgate::grpc::callers::{Callers, Identity, Nobody, Peer, Ways};
    let mut callers = Callers::default();
    let roles = [Role::Proposer].into_iter().collect();
    callers.add_secret(b"a-secret-of-a-test", Caller { roles, tenants: Tenants::All, user: None });
    let mut headers = http::HeaderMap::new();
    headers.insert("authorization", "Bearer a-secret-of-a-test".parse().unwrap());
    assert_eq!(callers.authenticate(&headers, None), Err(Nobody::WayClosed));
    let peer = Peer { ways: Ways::ALL, identity: Identity::Unknown };
    assert!(callers.authenticate(&headers, Some(&peer)).is_ok());
}
