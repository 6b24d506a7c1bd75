//! The walls that a single crate has no compiler for: who may name what, and how the source is kept.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const MAX_LINES: usize = 500;

/// What only some rooms may name. A place is a file, or with `/` at its end a directory, below `src/`.
struct Wall {
    what: &'static str,
    /// Identifiers and paths, found as whole words in code outside comments and tests.
    names: &'static [&'static str],
    /// Every place that may, and why.
    places: &'static [(&'static str, &'static str)],
}

const WALLS: &[Wall] = &[
    Wall {
        what: "the gRPC library",
        names: &["tonic", "tonic_health", "tonic_prost", "tonic_reflection", "tonic_types"],
        places: &[
            ("grpc/", "serves the contract"),
            ("adapters/upstream/", "metadata and status codes of the wire"),
            ("adapters/code.rs", "the names of the latter"),
            ("cli/client.rs", "a client of the gate"),
            ("cli/status.rs", "takes an answer"),
            ("cli/reload.rs", "takes an answer"),
            ("cli/demo/", "its client and its upstream"),
            ("app.rs", "a server's end, and the health reporter"),
            ("adapters/sinks/otlp.rs", "a client of a collector"),
            ("adapters/sinks/otlp/", "its connection, metadata and status codes"),
            ("proto.rs", "includes the generated code"),
        ],
    },
    Wall {
        what: "protobuf",
        names: &["prost", "prost_types"],
        places: &[
            ("grpc/to_wire.rs", "well-known types"),
            ("cli/status.rs", "the same, to show them"),
            ("adapters/upstream.rs", "decodes an answer"),
            ("adapters/upstream/request.rs", "encodes a request"),
        ],
    },
    Wall {
        what: "the wire types",
        names: &["proto::", "crate::proto"],
        places: &[
            ("grpc/", "converts them"),
            ("adapters/upstream.rs", "the handler's side of the contract"),
            ("adapters/upstream/request.rs", "the handler's side of the contract"),
            ("cli/audit.rs", "watches as a collector does"),
            ("cli/audit/", "prints what it is sent"),
            ("cli/confirm.rs", "confirms as a confirmation page does"),
            ("cli/status.rs", "shows what the gate answers"),
            ("cli/reload.rs", "shows what the gate answers"),
            ("cli/demo/", "proposes as a backend does, and answers as a handler does"),
            ("app.rs", "names the service whose health it sets"),
            (
                "telemetry/metrics/open_metrics.rs",
                "families of the metrics library, by the same word",
            ),
        ],
    },
    Wall {
        what: "metrics libraries",
        names: &["opentelemetry", "opentelemetry_prometheus", "opentelemetry_sdk", "prometheus"],
        places: &[
            ("telemetry/metrics.rs", "the pipeline"),
            ("telemetry/metrics/", "the instruments"),
        ],
    },
    Wall {
        what: "the wire types of OpenTelemetry",
        names: &["opentelemetry_proto"],
        places: &[
            ("adapters/sinks/otlp.rs", "delivers them"),
            ("adapters/sinks/otlp/record.rs", "makes them"),
        ],
    },
    Wall {
        what: "HTTP",
        names: &["http::", "http_body::", "http_body_util::", "hyper::", "hyper_util::"],
        places: &[
            ("adapters/upstream/", "speaks unary gRPC itself, to know exactly what came back"),
            ("adapters/sinks/otlp/", "the authority of an endpoint, a connection under TLS"),
            ("telemetry/admin.rs", "serves probes and metrics"),
            ("grpc/", "authenticates and refuses before tonic decodes"),
            ("cli/client.rs", "a connection under TLS"),
        ],
    },
    Wall {
        what: "the runtime",
        names: &["tokio", "tokio_stream", "tokio_util"],
        places: &[
            ("gate.rs", "tracked tasks, the in-flight limit"),
            ("gate/", "deadlines"),
            ("grpc/", "listeners"),
            ("adapters/journal/", "answers its waiters"),
            ("adapters/ledger/", "answers its waiters, reads on threads that may block"),
            ("adapters/upstream/", "connections"),
            ("adapters/sinks/", "a task for each sink, time-outs, connections"),
            ("telemetry/admin.rs", "its own listener"),
            ("cli/", "runs it"),
            ("app/listen.rs", "follows the files of TLS"),
            ("app.rs", "joins the servers"),
            ("app/open_journal.rs", "opens on a thread that may block"),
            ("app/reload.rs", "one reload at a time"),
            ("app/reload/poll.rs", "when to look at the files"),
            ("app/issuers.rs", "follows key files"),
            ("adapters/watched.rs", "when to look again, on threads that may block"),
        ],
    },
    Wall {
        what: "the schema library",
        names: &["jsonschema", "referencing"],
        places: &[("domain/schema.rs", "compiles"), ("domain/schema/", "validates and vets")],
    },
    Wall {
        what: "the storage library",
        names: &["redb"],
        places: &[
            ("adapters/ledger/embedded.rs", "opens it"),
            ("adapters/ledger/embedded/", "reads and writes it"),
        ],
    },
    Wall {
        what: "the database",
        names: &["tokio_postgres", "tokio_postgres_rustls", "deadpool"],
        places: &[
            ("adapters/ledger/postgres.rs", "its pool"),
            ("adapters/ledger/postgres/", "asks it"),
        ],
    },
    Wall {
        what: "the signatures of tokens",
        names: &["jsonwebtoken"],
        places: &[("grpc/callers/jwt_keys.rs", "reads public keys, and verifies with them")],
    },
    Wall {
        what: "YAML",
        names: &["serde_saphyr"],
        places: &[
            ("config/document.rs", "the one strict reader"),
            ("cli/demo/upstream/knowledge.rs", "the sample upstream's own file"),
        ],
    },
    Wall {
        what: "the command line",
        names: &["clap", "std::process"],
        places: &[
            ("cli/", "parses it"),
            ("main.rs", "the exit code"),
            ("failpoint.rs", "ends a test build"),
        ],
    },
    Wall {
        what: "files",
        names: &["fs", "File", "OpenOptions", "DirBuilder", "rustix"],
        places: &[
            ("adapters/journal/", "the journal"),
            ("adapters/ledger/", "the ledger"),
            ("adapters/lock.rs", "who owns the directory of either"),
            ("adapters/manifest.rs", "which one that is"),
            ("adapters/watched.rs", "files that are read again"),
            ("adapters/sinks/cursor.rs", "makes the directory of the cursors"),
            ("adapters/sinks/stdout.rs", "standard output without a buffer"),
            ("adapters/sinks/otlp/headers.rs", "reads the file of headers"),
            ("config/policy/files.rs", "reads the policy directory"),
            ("config/secrets.rs", "reads and writes secret files"),
            ("grpc/listeners.rs", "the mode and the end of a Unix socket"),
            ("grpc/tls.rs", "certificates and their keys"),
            ("cli/conform.rs", "reads vector files"),
            ("cli/ticket.rs", "reads a ticket"),
            ("cli/audit/replay.rs", "reads recorded events"),
            ("cli/demo/", "its temporary directory, its documents"),
        ],
    },
    Wall {
        what: "the wall clock",
        names: &["SystemTime::now", "Timestamp::now", "Zoned::now"],
        places: &[
            ("adapters/clock.rs", "the port"),
            ("telemetry/logs.rs", "the time of a log record, which decides nothing"),
        ],
    },
    Wall {
        what: "monotonic time",
        names: &["Instant::now"],
        places: &[
            ("gate.rs", "since when it runs, in the runtime's time, which tests step"),
            ("gate/", "deadlines and durations, in the same"),
            ("grpc/tool_gate.rs", "when a request came, for its deadline"),
            ("grpc/request_body.rs", "whether its message is late"),
            ("adapters/journal/", "when to sync, and how long it took"),
            ("adapters/sinks/", "when to try again, and when to write a cursor"),
        ],
    },
    Wall {
        what: "randomness",
        names: &["getrandom", "new_v4", "rand"],
        places: &[
            ("config/secrets.rs", "new secrets"),
            ("adapters/journal/manifest.rs", "a new journal's id"),
            ("adapters/ledger/embedded/manifest.rs", "a new ledger's id"),
            (
                "adapters/ledger/embedded/session.rs",
                "a reservation's id, which only its holder may settle",
            ),
            ("adapters/ledger/postgres/reserve.rs", "the same"),
            ("adapters/ledger/postgres/owner.rs", "what tells a start from any other"),
            ("gate/confirm.rs", "a confirmation's id"),
            ("adapters/sinks/back_off.rs", "spreads the next tries of many gates"),
            ("cli/demo/stage.rs", "the name of a temporary directory"),
            ("cli/demo/upstream/drafts.rs", "the name of a file until it is whole"),
        ],
    },
    Wall {
        what: "the environment",
        names: &["env::var", "env::var_os", "temp_dir", "current_dir"],
        places: &[
            ("cli/demo/stage.rs", "where temporary files go"),
            ("failpoint.rs", "what a test names"),
        ],
    },
];

/// A source file below `src/`, without its tests.
struct Source {
    place: String,
    code: String,
}

#[test]
fn only_the_rooms_of_the_table_name_what_it_lists() {
    let sources = sources();
    let mut breaches = Vec::new();
    for Wall { what, names, places } in WALLS {
        let mut used = BTreeSet::new();
        for Source { place, code } in &sources {
            let Some(name) = names.iter().find(|name| mentions(code, name)) else { continue };
            if let Some((allowed, _)) = places.iter().find(|(allowed, _)| is_within(place, allowed))
            {
                used.insert(*allowed);
            } else {
                breaches.push(format!("src/{place} names {name}: {what} has no place there"));
            }
        }
        let unused = places.iter().filter(|(allowed, _)| !used.contains(allowed));
        breaches.extend(unused.map(|(allowed, _)| {
            format!("{allowed} names nothing of {what}: take it off the list")
        }));
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_domain_is_pure() {
    let effects =
        WALLS.iter().filter(|wall| wall.what != "the schema library").flat_map(|wall| wall.names);
    let effects: Vec<_> = effects
        .chain(&["std::net", "async fn", "thread", "crate::gate", "crate::adapters"])
        .collect();
    for Source { place, code } in
        sources().iter().filter(|source| source.place.starts_with("domain/"))
    {
        let named: Vec<_> = effects.iter().filter(|effect| mentions(code, effect)).collect();
        assert!(named.is_empty(), "src/{place} names {named:?}");
    }
}

/// A field that is not on the list is dropped without a word.
#[test]
fn what_is_logged_is_on_the_list() {
    let known = toolgate::telemetry::logs::FIELDS;
    let mut logged = 0;
    for Source { place, code } in sources() {
        for log in code.split("tracing::").skip(1) {
            let level = log.split('(').next().unwrap_or_default();
            if !["error!", "warn!", "info!", "debug!"].contains(&level) {
                continue;
            }
            let fields = log.split_once('(').unwrap().1.split(['"', ';']).next().unwrap();
            for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
                let name = field.split('=').next().unwrap().trim().trim_start_matches(['%', '?']);
                assert!(known.contains(&name), "src/{place} logs {name}, which is dropped");
                logged += 1;
            }
        }
    }
    assert!(logged > 20, "{logged}");
}

#[test]
fn files_stay_short() {
    for file in files("src", "rs").into_iter().chain(files("tests", "rs")) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines, more than {MAX_LINES}", file.display());
    }
}

#[test]
fn nothing_is_left_to_do() {
    // Put together here, so that this file does not name them.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["to", "do!"], ["unimple", "mented!"], ["db", "g!"]];
    let marks = marks.map(|parts| parts.concat());
    for file in everything() {
        let text = fs::read_to_string(&file).unwrap();
        for mark in &marks {
            assert!(!text.contains(mark.as_str()), "{} holds {mark}", file.display());
        }
    }
}

#[test]
fn what_is_allowed_has_a_reason() {
    for file in files("src", "rs")
        .into_iter()
        .chain(files("tests", "rs"))
        .chain([Path::new(ROOT).join("build.rs")])
    {
        let text = fs::read_to_string(&file).unwrap();
        for line in
            text.lines().map(str::trim_start).enumerate().filter(|(_, line)| opens_allow(line))
        {
            let attribute: String =
                text.lines().skip(line.0).take_while(|line| !line.trim().is_empty()).collect();
            let attribute = attribute.split_once(")]").unwrap().0;
            assert!(attribute.contains("reason = \""), "{}: {attribute}", file.display());
        }
    }
}

#[test]
fn nothing_panics_on_purpose() {
    for Source { place, code } in sources() {
        for call in [".unwrap()", ".expect(\"", "panic!(", ".unwrap_unchecked("] {
            assert!(!code.contains(call), "src/{place} holds {call}");
        }
    }
}

#[test]
fn a_word_is_found_whole_and_outside_comments_and_tests() {
    assert!(mentions("use tonic::Status;", "tonic"));
    assert!(!mentions("use tonic_types::Status;", "tonic"));
    assert!(!mentions("let monotonic = 1;", "tonic"));
    assert!(mentions("std::fs::read(x)", "fs"));
    assert!(mentions("use http::Uri;", "http::") && !mentions("\"http://\"", "http::"));
    let text = "use a; // tonic\n/// tonic\n#[cfg(test)]\nmod tests;\nfn b() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    tonic\n}\n";
    let code = without_tests(text);
    assert!(!mentions(&code, "tonic") && mentions(&code, "b"), "{code}");
    assert!(is_within("grpc/server.rs", "grpc/") && !is_within("grpc/server.rs", "grpc"));
}

fn opens_allow(line: &str) -> bool {
    ["#[allow(", "#![allow(", "#[expect(", "#![expect("]
        .iter()
        .any(|opening| line.starts_with(opening))
}

fn is_within(place: &str, allowed: &str) -> bool {
    if allowed.ends_with('/') { place.starts_with(allowed) } else { place == allowed }
}

/// Whether the code names this, as whole words.
fn mentions(code: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        let after = code[start + name.len()..].chars().next();
        !before.is_some_and(is_part) && (name.ends_with(':') || !after.is_some_and(is_part))
    })
}

/// The code of `src/`: no comments, no test modules.
fn sources() -> Vec<Source> {
    let source = Path::new(ROOT).join("src");
    let mut found = Vec::new();
    for file in files("src", "rs") {
        let place = file.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
        if place.ends_with("tests.rs") || place.contains("/tests/") {
            continue;
        }
        found.push(Source { place, code: without_tests(&fs::read_to_string(&file).unwrap()) });
    }
    assert!(found.len() > 50, "the source was not found");
    found
}

fn without_tests(text: &str) -> String {
    let lines: Vec<_> =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let is_attribute = |line: &&&str| line.trim_start().starts_with('#');
    let begins_tests = |index: &usize| {
        let next = lines[*index..].iter().find(|line| !is_attribute(line));
        lines[*index].trim() == "#[cfg(test)]"
            && next.is_some_and(|line| line.trim() == "mod tests {")
    };
    let end = (0..lines.len()).find(begins_tests).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// Everything that people write, but the guard that names what is not to be written.
fn everything() -> Vec<PathBuf> {
    let folders = [
        ("src", "rs"),
        ("tests", "rs"),
        ("tests", "py"),
        ("tests", "yaml"),
        ("proto", "proto"),
        ("docs", "md"),
    ];
    let mut found: Vec<_> = folders.iter().flat_map(|(folder, kind)| files(folder, kind)).collect();
    found.extend(
        ["build.rs", "Cargo.toml", "README.md", ".ci/run"].map(|file| Path::new(ROOT).join(file)),
    );
    found
}

/// Every file of a kind below a folder, in order.
fn files(folder: &str, kind: &str) -> Vec<PathBuf> {
    let mut waiting = vec![Path::new(ROOT).join(folder)];
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == kind) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
