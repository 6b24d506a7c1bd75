//! A gate with a ledger in front of scripted handlers.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use tokio::time::Instant;
use toolgate::domain::policy::PolicySnapshot;
use toolgate::domain::proposal::{BatchMode, Context, Proposal};
use toolgate::domain::record::{CallKey, State, TicketUse};
use toolgate::domain::refused::Refused;
use toolgate::domain::ticket::Issued;
use toolgate::gate::{BatchReport, ExecuteRequest, Gate, IssueRequest, Ports, Verdict};
use toolgate::ports::Ledger;
use toolgate::telemetry::metrics::Metrics;
use uuid::Uuid;

use crate::support::fakes::{ScriptedJournal, ScriptedUpstream, SteppedClock, gate};
use crate::support::ledger::recorder;
use crate::support::policies;

/// Loaded once for all gates.
static POLICY: LazyLock<Arc<PolicySnapshot>> = LazyLock::new(policies::writes);

pub struct Stage {
    pub gate: Arc<Gate>,
    pub journal: Arc<ScriptedJournal>,
    pub upstream: Arc<ScriptedUpstream>,
    pub clock: Arc<SteppedClock>,
    pub metrics: Metrics,
    pub ledger: Arc<dyn Ledger>,
    /// The last ticket that each call was given.
    tickets: Mutex<HashMap<String, Arc<Issued>>>,
}

impl Stage {
    pub fn new(
        ledger: Arc<dyn Ledger>,
        journal: ScriptedJournal,
        upstream: ScriptedUpstream,
    ) -> Self {
        let (journal, upstream) = (Arc::new(journal), Arc::new(upstream));
        let clock = Arc::new(SteppedClock::new());
        let policy = Arc::clone(&POLICY);
        let ports =
            Ports { journal: journal.clone(), upstream: upstream.clone(), clock: clock.clone() };
        let (gate, metrics) = gate(policy, 4, Some(recorder(Arc::clone(&ledger))), ports);
        Self { gate, journal, upstream, clock, metrics, ledger, tickets: Mutex::default() }
    }

    pub async fn execute(
        &self,
        mode: BatchMode,
        proposals: Vec<Proposal>,
        deadline: Option<Instant>,
    ) -> Result<BatchReport, Refused> {
        let context = Arc::new(context());
        let request = ExecuteRequest { context, mode, proposals, deadline, trace: None };
        self.gate.execute(request).await
    }

    /// Previews the call and has its user confirm it.
    pub async fn issue(&self, context: Context, proposal: Proposal) -> Issued {
        let seen = self.seen(context, proposal).await;
        self.gate.issue(seen).await.unwrap()
    }

    /// What a confirmation page sends once the user has seen the preview.
    pub async fn seen(&self, context: Context, proposal: Proposal) -> IssueRequest {
        let context = Arc::new(context);
        let proposals = [proposal];
        let verdicts = self.gate.check(&context, &proposals).await.unwrap().verdicts;
        let preview = match verdicts.into_iter().next() {
            Some(Verdict::Admitted(preview) | Verdict::Refused(_, preview)) => preview.unwrap(),
            other => panic!("no preview: {other:?}"),
        };
        let [proposal] = proposals;
        IssueRequest {
            confirming_user_id: context.user_id.to_string(),
            context,
            proposal,
            confirming_user_roles: Vec::new(),
            arguments_hash: preview.arguments_hash.to_string(),
            key_id: preview.key_id.to_string(),
            contract_digest: preview.contract_digest.to_string(),
            trace: None,
        }
    }

    /// The call with a ticket of its own.
    pub async fn confirmed(&self, id: &str, tool: &str, text: &str) -> Proposal {
        let bare = proposal(id, tool, text);
        let issued = self.issue(context(), bare.clone()).await;
        let ticket = Some(issued.ticket.clone());
        self.tickets.lock().unwrap().insert(id.to_owned(), Arc::new(issued));
        Proposal { ticket, ..bare }
    }

    /// What the ledger knows of a call and of the ticket that came with it:
    /// `none`, `running LAST` or `REASON EFFECT LAST`, then `unused`, `spent`,
    /// `revoked` or nothing.
    pub async fn known(&self, id: &str, ticket: Option<&Issued>) -> String {
        let record = self.ledger.look(CallKey::new(&context(), id)).await.unwrap();
        let record = match record {
            None => "none".to_owned(),
            Some(record) => match record.state {
                State::Running => format!("running {}", record.last_attempt),
                State::Ended(ended) => {
                    format!("{} {} {}", ended.reason, ended.effect.as_str(), record.last_attempt)
                }
            },
        };
        let Some(issued) = ticket else { return record };
        let id = Uuid::parse_str(&issued.claims.confirmation_id).unwrap();
        let expires_at = jiff::Timestamp::from_second(issued.claims.expires_at).unwrap();
        let ticket = match self.ledger.ticket(id, expires_at).await.unwrap() {
            TicketUse::Unused => "unused",
            TicketUse::Spent => "spent",
            TicketUse::Revoked => "revoked",
            TicketUse::Forgotten => "forgotten",
        };
        format!("{record}, {ticket}")
    }

    /// The same, with the last ticket that the call was given by [`Stage::confirmed`].
    pub async fn known_of(&self, id: &str) -> String {
        let issued = self.tickets.lock().unwrap().get(id).cloned();
        self.known(id, issued.as_deref()).await
    }
}

pub fn context() -> Context {
    Context {
        request_id: "request-1".into(),
        user_id: "user-1".into(),
        tenant_id: "tenant-1".into(),
        conversation_id: "conversation-1".into(),
    }
}

/// A call without a ticket.
pub fn proposal(id: &str, tool: &str, text: &str) -> Proposal {
    Proposal {
        tool_call_id: id.into(),
        name: tool.into(),
        arguments_json: format!(r#"{{"text":"{text}"}}"#),
        attempt: None,
        ticket: None,
    }
}
