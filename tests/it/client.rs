//! The command line as a client: under TLS, and on a Unix socket.

use std::fs;

use tempfile::TempDir;
use toolgate::app::Running;

use crate::support::certificates::Authority;
use crate::support::process::run_text;
use crate::support::running::{Options, start_gate, write_config};

const PAGE: &str = "page.example.org";

/// A gate with a listener under TLS and a socket; where it is, and what its clients need.
struct Stage {
    gate: Running,
    directory: TempDir,
}

impl Stage {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.server().write(directory.path(), "server");
        authority.client(&[PAGE]).write(directory.path(), "page");
        authority.client(&["other.example.org"]).write(directory.path(), "other");
        fs::write(directory.path().join("ca.crt"), &authority.pem).unwrap();
        fs::write(directory.path().join("other-ca.crt"), Authority::new().pem).unwrap();
        let file = write_config(directory.path(), "http://127.0.0.1:1", &Options::writes());
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let callers = format!(
            "- {{role: confirmer, certificate: {{dns: {PAGE}}}}}\n\
             - {{role: confirmer, process: {{uid: {}, gid: {}}}}}\n",
            uid.as_raw(),
            gid.as_raw()
        );
        let listeners = "[{address: \"127.0.0.1:0\", tls: {certificate: server.crt, key: server.key, client_ca: ca.crt}}, unix:gate.sock]";
        let text = fs::read_to_string(&file).unwrap();
        let text = text
            .replace("[\"127.0.0.1:0\"]", listeners)
            .replace("upstreams:", &format!("{callers}upstreams:"));
        fs::write(&file, text).unwrap();
        Self { gate: start_gate(&file).await, directory }
    }

    /// The gate under TLS, by the name in its certificate.
    fn under_tls(&self) -> String {
        let address = &self.gate.addresses()[0];
        format!("https://{}", address.replace("127.0.0.1", "localhost"))
    }

    /// What `toolgate confirm` says of a draft; arguments that are files of the stage begin with `@`.
    async fn confirm(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let at = |name: &str| self.directory.path().join(name).to_str().unwrap().to_owned();
        let mut all: Vec<String> =
            "confirm --tenant t --user u --conversation c --call c1 --tool draft --yes"
                .split(' ')
                .map(str::to_owned)
                .collect();
        all.extend(["--arguments".to_owned(), r#"{"text": "hello"}"#.to_owned()]);
        let given = arguments.iter().map(|argument| match argument.strip_prefix('@') {
            Some(file) => at(file),
            None => (*argument).to_owned(),
        });
        all.extend(given);
        let run = move || run_text(all.iter().map(String::as_str));
        tokio::task::spawn_blocking(run).await.unwrap()
    }
}

#[tokio::test]
async fn a_certificate_confirms_under_tls() {
    let stage = Stage::start().await;
    let gate = stage.under_tls();
    let page = ["--gate", &gate, "--ca", "@ca.crt", "--cert", "@page.crt", "--key", "@page.key"];
    let (code, ticket, log) = stage.confirm(&page).await;
    assert_eq!((code, ticket.lines().count()), (Some(0), 1), "{log}");
    assert!(log.contains("Write the draft") && ticket.matches('.').count() == 2, "{log} {ticket}");

    // A certificate that is nobody's; with a secret beside it, the secret speaks.
    let other = ["--gate", &gate, "--ca", "@ca.crt", "--cert", "@other.crt", "--key", "@other.key"];
    let (code, out, log) = stage.confirm(&other).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(log.contains("Unauthenticated UNAUTHENTICATED"), "{log}");
    let (code, _, log) =
        stage.confirm(&[&other[..], &["--secret-file", "@confirmer"]].concat()).await;
    assert_eq!(code, Some(0), "{log}");

    // Without a certificate there is no connection, whatever secret is held ready.
    let bare = ["--gate", &gate, "--ca", "@ca.crt", "--secret-file", "@confirmer"];
    let (code, out, _) = stage.confirm(&bare).await;
    assert_eq!((code, out.as_str()), (Some(1), ""));
}

#[tokio::test]
async fn nothing_is_sent_to_a_gate_that_nobody_vouches_for() {
    let stage = Stage::start().await;
    let gate = stage.under_tls();
    let by_address = gate.replace("localhost", "127.0.0.1");
    let plain = gate.replace("https://", "");
    for (gate, ca, told) in [
        (&gate, "@other-ca.crt", "cannot be reached"),
        // The certificate names localhost alone.
        (&by_address, "@ca.crt", "cannot be reached"),
        (&plain, "@ca.crt", "write --gate https://"),
        (&gate, "@page.key", "PEM file of certificates"),
        (&gate, "@nothing", "cannot be read"),
    ] {
        let page = ["--gate", gate, "--ca", ca, "--cert", "@page.crt", "--key", "@page.key"];
        let (code, out, log) = stage.confirm(&page).await;
        assert_eq!((code, out.as_str()), (Some(1), ""), "{gate} {ca}");
        assert!(log.contains(told), "{gate} {ca}: {log}");
    }
    let (code, _, log) = stage.confirm(&["--gate", &gate, "--secret-file", "@confirmer"]).await;
    assert_eq!(code, Some(1));
    assert!(log.contains("add --ca FILE"), "{log}");
    // Half of an identity is wrong usage.
    for half in [["--cert", "@page.crt"], ["--key", "@page.key"]] {
        let arguments = [&["--gate", &*gate, "--ca", "@ca.crt"][..], &half].concat();
        assert_eq!(stage.confirm(&arguments).await.0, Some(2), "{half:?}");
    }
    // A key that others may read is not used.
    let key = stage.directory.path().join("page.key");
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let page = ["--gate", &gate, "--ca", "@ca.crt", "--cert", "@page.crt", "--key", "@page.key"];
    let (code, _, log) = stage.confirm(&page).await;
    assert_eq!(code, Some(1));
    assert!(log.contains("mode 0644") && log.contains("chmod 0600"), "{log}");
}

#[tokio::test]
async fn a_process_confirms_on_a_socket() {
    let stage = Stage::start().await;
    let socket = stage.gate.addresses()[1].clone();
    let (code, ticket, log) = stage.confirm(&["--gate", &socket]).await;
    assert_eq!((code, ticket.lines().count()), (Some(0), 1), "{log}");
    let (code, _, log) = stage.confirm(&["--gate", &socket, "--secret-file", "@auditor"]).await;
    assert_eq!(code, Some(1));
    assert!(log.contains("UNAUTHENTICATED"), "two identities: {log}");
}
