//! Every reason that can occur is reached by a test, and the wire knows exactly these.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toolgate::domain::proposal::{BatchMode, Context, Proposal};
use toolgate::domain::reason::Reason;
use toolgate::domain::refused::Refused;
use toolgate::gate::{ExecuteRequest, Ports};
use toolgate::proto;

use crate::support::fakes::{ScriptedJournal, ScriptedUpstream, SteppedClock, gate};
use crate::support::policies;

/// Reasons that no case file reaches, because they need a process or a connection: where they are.
const ELSEWHERE: [(Reason, &str); 4] = [
    (Reason::Cancelled, "tests/it/cancellation/wire.rs"),
    (Reason::ClockUntrusted, "tests/it/writes/wire/restarts.rs"),
    (Reason::ConfirmationOtherLedger, "tests/it/writes/wire/restarts.rs"),
    (Reason::ProcessLost, "tests/it/recovery.rs"),
];

/// Reasons that cannot occur yet: nothing of this version leads to them.
const NOT_YET: [(&str, &[Reason]); 2] = [
    (
        "budgets: policies have none yet",
        &[Reason::RateLimited, Reason::QuotaExceeded, Reason::ConcurrencyLimited],
    ),
    ("rules: policies have none yet", &[Reason::RuleDenied]),
];

/// A case of one batch, or of several rounds.
#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    results: Vec<String>,
    #[serde(default)]
    rounds: Vec<Case>,
}

impl Case {
    fn results(&self) -> impl Iterator<Item = &String> {
        self.results.iter().chain(self.rounds.iter().flat_map(|round| &round.results))
    }
}

fn codes<'a>(reasons: impl IntoIterator<Item = &'a Reason>) -> BTreeSet<&'static str> {
    reasons.into_iter().map(|reason| reason.code()).collect()
}

/// The reasons in the results of `tests/cases/gate/*.yaml` and `tests/cases/writes/*.yaml`.
fn in_case_files() -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let folders = ["tests/cases/gate", "tests/cases/writes"];
    for entry in folders.iter().flat_map(|folder| std::fs::read_dir(root().join(folder)).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let cases: Vec<Case> =
            serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        // `ID OUTCOME REASON …`, or `ID not_run`.
        for result in cases.iter().flat_map(Case::results) {
            if let Some(code) = result.split(' ').nth(2) {
                let reason = Reason::from_code(code)
                    .unwrap_or_else(|| panic!("{}: {result}", path.display()));
                assert_eq!(result.split(' ').nth(1), Some(reason.outcome().as_str()), "{result}");
                found.insert(reason.code());
            }
        }
    }
    found
}

#[test]
fn every_reason_that_can_occur_is_reached_and_the_others_are_named() {
    let cases = in_case_files();
    let elsewhere: BTreeSet<_> = ELSEWHERE.iter().map(|(reason, _)| reason.code()).collect();
    let not_yet = codes(NOT_YET.iter().flat_map(|(_, reasons)| *reasons));
    assert!(cases.is_disjoint(&not_yet), "it occurs: {:?}", cases.intersection(&not_yet));
    assert!(elsewhere.is_disjoint(&not_yet));
    let known: BTreeSet<_> = cases.union(&elsewhere).chain(&not_yet).copied().collect();
    let all = codes(Reason::ALL);
    assert_eq!(
        all.difference(&known).collect::<Vec<_>>(),
        Vec::<&&str>::new(),
        "no test reaches these"
    );
    assert_eq!(all.len(), Reason::ALL.len(), "a code stands twice");
    for (reason, file) in ELSEWHERE {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains(&format!("Reason::{reason:?}")), "{file} does not reach {reason}");
    }
}

#[test]
fn the_wire_knows_exactly_these_reasons() {
    let wire: BTreeSet<String> = (0..1_000)
        .filter_map(|number| proto::Reason::try_from(number).ok())
        .filter(|reason| *reason != proto::Reason::Unspecified)
        .map(|reason| reason.as_str_name().strip_prefix("REASON_").unwrap().to_owned())
        .collect();
    let table: BTreeSet<String> =
        Reason::ALL.iter().map(|reason| reason.code().to_owned()).collect();
    assert_eq!(wire, table);
}

#[test]
fn a_reasons_number_tells_its_outcome() {
    // The ranges that `types.proto` keeps for each outcome.
    for reason in Reason::ALL {
        let wire = proto::Reason::from_str_name(&format!("REASON_{reason}")).unwrap();
        let outcome = match wire as i32 {
            1..=19 => "validation",
            20..=59 => "denied",
            60..=79 => "timeout",
            80..=99 => "error",
            100 => "success",
            other => panic!("{reason} has the number {other}"),
        };
        assert_eq!(reason.outcome().as_str(), outcome, "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_is_down_refuses_the_request_as_a_whole() {
    let journal = Arc::new(ScriptedJournal::default());
    let upstream = Arc::new(ScriptedUpstream::default());
    let policy = policies::cases();
    let ports = Ports {
        journal: journal.clone(),
        upstream: upstream.clone(),
        clock: Arc::new(SteppedClock::new()),
    };
    let (gate, _) = gate(policy, 1, None, ports);
    let request = || ExecuteRequest {
        context: Arc::new(Context {
            request_id: "r".into(),
            user_id: "u".into(),
            tenant_id: "t".into(),
            conversation_id: "c".into(),
        }),
        mode: BatchMode::StopOnFailure,
        proposals: vec![Proposal {
            tool_call_id: "c1".into(),
            name: "patient".into(),
            arguments_json: "{}".into(),
            attempt: None,
            ticket: None,
        }],
        deadline: None,
        trace: None,
    };
    gate.execute(request()).await.unwrap();
    journal.break_down();
    assert_eq!(gate.execute(request()).await.unwrap_err(), Refused::JournalUnavailable);
    assert_eq!(
        (journal.taken().len(), upstream.seen().len()),
        (2, 1),
        "nothing more was run or recorded"
    );
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
