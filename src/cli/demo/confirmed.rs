//! The second half of the play: a write that a person confirms, and every way in
//! which a ticket does not open another door.

use std::time::Duration;

use super::scenes::{Scene, Wanted, call, single};
use super::stage::{Stage, Who};
use super::story::Story;
use crate::cli::Failure;
use crate::proto::{Outcome, Reason, ToolCall};

const TOOL: &str = "create_support_draft";
const QUESTION: &str = r#"{"question": "The invoice of May is missing. Can you send it again?"}"#;

const fn refused(reason: Reason) -> Wanted {
    Wanted { outcome: Outcome::Denied, reason, attempt: 0 }
}

const fn succeeded(attempt: u32) -> Wanted {
    Wanted { outcome: Outcome::Success, reason: Reason::Ok, attempt }
}

/// One call and what must become of it.
struct Act {
    id: &'static str,
    title: &'static str,
    why: &'static str,
    wanted: Wanted,
    handler_calls: u64,
}

/// Plays it on a stage whose tickets live for `ttl`.
pub(super) async fn play(
    stage: &mut Stage,
    story: &mut Story,
    ttl: Duration,
) -> Result<(), Failure> {
    confirm_and_repeat(stage, story).await?;
    move_a_ticket(stage, story).await?;
    outlive_a_ticket(stage, story, ttl).await?;
    change_the_contract(stage, story).await?;
    time_out_once(stage, story).await
}

async fn confirm_and_repeat(stage: &mut Stage, story: &mut Story) -> Result<(), Failure> {
    let draft = call("call-draft", TOOL, QUESTION);
    let act = Act {
        id: "unconfirmed",
        title: "a write that nobody confirmed",
        why: "a write needs a ticket, which only a confirmer can get; the model cannot",
        wanted: refused(Reason::ConfirmationRequired),
        handler_calls: 0,
    };
    perform(stage, story, act, draft.clone(), &Who::user()).await?;

    let preview = stage.preview(&draft, &Who::user()).await?;
    story.preview(&preview)?;
    let refused_ticket = stage.issue(&draft, &Who::user(), &super::stage::stale(&preview)).await;
    story.refused_to_issue(
        "a preview that shows something else",
        refused_ticket.err(),
        "PREVIEW_STALE",
    )?;

    let ticket = stage.issue(&draft, &Who::user(), &preview).await.map_err(Failure::from)?;
    let draft = ToolCall { confirmation_ticket: ticket, ..draft };
    let act = Act {
        id: "confirmed",
        title: "the same, confirmed",
        why: "the ticket binds exactly this call; it is spent before the handler is called",
        wanted: succeeded(1),
        handler_calls: 1,
    };
    perform(stage, story, act, draft.clone(), &Who::user()).await?;
    let act = Act {
        id: "again",
        title: "the same request once more",
        why: "the call has ended: what is recorded of it is answered, and no handler runs",
        wanted: refused(Reason::CallReplayed),
        handler_calls: 0,
    };
    perform(stage, story, act, draft, &Who::user()).await
}

async fn move_a_ticket(stage: &mut Stage, story: &mut Story) -> Result<(), Failure> {
    let confirmed = call("call-moved", TOOL, QUESTION);
    let ticket = stage.confirm(&confirmed, &Who::user()).await?;
    let other = r#"{"question": "Please delete my account."}"#;
    let elsewhere = [
        ("moved-arguments", "an unspent ticket, moved to other arguments", other, Who::user()),
        (
            "moved-conversation",
            "moved to another conversation",
            QUESTION,
            Who::in_conversation("conversation-2"),
        ),
        ("moved-user", "moved to another user", QUESTION, Who::called("user-ben")),
    ];
    for (id, title, arguments, who) in elsewhere {
        let moved =
            ToolCall { confirmation_ticket: ticket.clone(), ..call("call-moved", TOOL, arguments) };
        let act = Act {
            id,
            title,
            why: "a ticket names one call, its arguments' hash, its user and its conversation",
            wanted: refused(Reason::ConfirmationMismatch),
            handler_calls: 0,
        };
        perform(stage, story, act, moved, &who).await?;
    }
    stage.revoke(&ticket).await?;
    let act = Act {
        id: "revoked",
        title: "a ticket that was revoked",
        why: "the person changed their mind in time",
        wanted: refused(Reason::ConfirmationRevoked),
        handler_calls: 0,
    };
    let revoked = ToolCall { confirmation_ticket: ticket, ..confirmed };
    perform(stage, story, act, revoked, &Who::user()).await
}

async fn outlive_a_ticket(
    stage: &mut Stage,
    story: &mut Story,
    ttl: Duration,
) -> Result<(), Failure> {
    let late = call("call-late", TOOL, QUESTION);
    let ticket = stage.confirm(&late, &Who::user()).await?;
    Story::waiting(ttl)?;
    tokio::time::sleep(ttl).await;
    let act = Act {
        id: "expired",
        title: "a ticket that has expired",
        why: "the demo's tickets live for a few seconds; by default it is five minutes",
        wanted: refused(Reason::ConfirmationExpired),
        handler_calls: 0,
    };
    let late = ToolCall { confirmation_ticket: ticket, ..late };
    perform(stage, story, act, late, &Who::user()).await
}

async fn change_the_contract(stage: &mut Stage, story: &mut Story) -> Result<(), Failure> {
    let draft = call("call-contract", TOOL, QUESTION);
    let ticket = stage.confirm(&draft, &Who::user()).await?;
    story.note_metrics(&stage.metrics().await?);
    stage.restart_with_changed_contract().await?;
    let act = Act {
        id: "contract",
        title: "a ticket after its contract has changed",
        why: "what was confirmed was the contract as it stood; the gate was restarted with another",
        wanted: refused(Reason::ConfirmationMismatch),
        handler_calls: 0,
    };
    let draft = ToolCall { confirmation_ticket: ticket, ..draft };
    perform(stage, story, act, draft, &Who::user()).await
}

async fn time_out_once(stage: &mut Stage, story: &mut Story) -> Result<(), Failure> {
    let slow =
        call("call-printer", TOOL, r#"{"question": "The printer on floor 2 is out of toner."}"#);
    let ticket = stage.confirm(&slow, &Who::user()).await?;
    let act = Act {
        id: "slow-draft",
        title: "a draft that is written, and answered too late",
        why: "the handler deduplicates by idempotency key, so its contract allows a retry: two attempts, one draft",
        wanted: succeeded(2),
        handler_calls: 2,
    };
    let slow = ToolCall { confirmation_ticket: ticket, ..slow };
    perform(stage, story, act, slow, &Who::user()).await?;
    story.drafts(stage.drafts()?, 2)?;
    Ok(())
}

async fn perform(
    stage: &mut Stage,
    story: &mut Story,
    act: Act,
    call: ToolCall,
    who: &Who,
) -> Result<(), Failure> {
    let scene: Scene = single(act.id, act.title, act.why, call, act.wanted, act.handler_calls);
    let answer = stage.execute(&scene, who).await?;
    let handler_calls = stage.handler_calls_since_last();
    story.scene(&scene, &answer, handler_calls)?;
    Ok(())
}
