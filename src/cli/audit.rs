//! `toolgate audit`: the journal, of a running gate or on the disk, as text.

mod fault;
mod line;
mod replay;
mod verify;

use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::client::{Connected, GateAddress, may_pass, told};
use super::{Failure, runtime};
use crate::proto::audit_client::AuditClient;
use crate::proto::watch_response::Step;
use crate::proto::{WatchRequest, WatchResponse};

/// How long a broken stream is waited for before it is asked for again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// At most, doubling from there while nothing comes.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Reads the audit trail: of a running gate, or on the disk.
#[derive(Debug, Args)]
pub struct AuditCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the journal's events, one a line. Role: auditor
    Tail(Tail),
    /// Verify the journal on the disk, from its first record to its last
    Verify(verify::Verify),
    /// Print the metrics of recorded events as `OpenMetrics` text
    Replay(replay::Replay),
}

/// Prints the events there are and ends; with --follow goes on with those that come.
///
/// Broken connections are then tried again for as long as it takes. Events that
/// the gate no longer keeps are told among them and on standard error.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
struct Tail {
    #[command(flatten)]
    gate: GateAddress,
    /// The first sequence wanted; 0: the oldest kept
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    from: u64,
    /// The journal that --from counts in; without it the present one
    #[arg(long, value_name = "ID")]
    journal: Option<String>,
    /// Only this tenant; may be given several times
    #[arg(long = "tenant", value_name = "TENANT")]
    tenants: Vec<String>,
    /// Only this tool; may be given several times
    #[arg(long = "tool", value_name = "TOOL")]
    tools: Vec<String>,
    /// Go on with the events that come, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// How events are printed
    #[arg(long, value_enum, default_value_t = Output::Human)]
    output: Output,
}

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line for people
    Human,
    /// One JSON object a line
    Json,
}

const EXIT_CODES: &str = "\
Exit codes: 0 the events were printed, or nobody reads any more; 1 the gate cannot be reached, \
refused, or ended the stream early; 2 wrong usage.";

/// How a stream ended.
enum End {
    /// With all there was.
    Whole,
    /// Nobody reads what is printed.
    Unread,
    /// Before its end: it may be asked for again.
    Broken(Failure),
}

impl AuditCommand {
    /// Prints what was asked for.
    ///
    /// # Errors
    ///
    /// What the gate answers, why it cannot be reached, or what cannot be read.
    pub fn run(self) -> Result<bool, Failure> {
        match self.action {
            Action::Tail(tail) => runtime()?.block_on(tail.run()),
            Action::Verify(verify) => verify.run(),
            Action::Replay(replay) => replay.run(),
        }
    }
}

impl Tail {
    async fn run(mut self) -> Result<bool, Failure> {
        let mut pause = FIRST_PAUSE;
        // An address or a secret that is wrong from the start stays wrong.
        let mut gate = Some(self.gate.connect().await?);
        loop {
            let before = self.from;
            let end = match gate.take() {
                Some(connected) => self.print(&connected).await?,
                None => match self.gate.connect().await {
                    Ok(connected) => self.print(&connected).await?,
                    Err(failure) => End::Broken(failure),
                },
            };
            match end {
                End::Broken(failure) if self.follow => {
                    if self.from != before {
                        pause = FIRST_PAUSE;
                    }
                    notice(&format!("{failure}; going on from {} soon", self.from));
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                End::Broken(failure) => {
                    return Err(Failure::new(format!(
                        "{failure}; go on with --from {}",
                        self.from
                    )));
                }
                End::Whole | End::Unread => return Ok(true),
            }
        }
    }

    /// Prints one stream, and moves on with every step of it.
    async fn print(&mut self, gate: &Connected) -> Result<End, Failure> {
        let request = gate.request(self.request());
        let mut client = AuditClient::new(gate.channel());
        let mut steps = match client.watch(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if may_pass(&status) => return Ok(End::Broken(told(status))),
            Err(status) => return Err(told(status)),
        };
        loop {
            let step = match steps.message().await {
                Ok(Some(WatchResponse { step: Some(step) })) => step,
                Ok(Some(WatchResponse { step: None })) => continue,
                Ok(None) => return Ok(End::Whole),
                Err(status) if may_pass(&status) => return Ok(End::Broken(told(status))),
                Err(status) => return Err(told(status)),
            };
            match self.show(&step) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(End::Unread),
                shown => shown?,
            }
            self.move_past(step);
        }
    }

    fn request(&self) -> WatchRequest {
        WatchRequest {
            journal_id: self.journal.clone().unwrap_or_default(),
            sequence: self.from,
            tenant_ids: self.tenants.clone(),
            tools: self.tools.clone(),
            stop_at_head: !self.follow,
        }
    }

    fn show(&self, step: &Step) -> io::Result<()> {
        if let Step::Gap(gap) = step {
            notice(&line::gap_told(gap));
        }
        let text = match self.output {
            Output::Human => line::human(step),
            Output::Json => line::json(step),
        };
        text.map_or(Ok(()), |text| writeln!(io::stdout().lock(), "{text}"))
    }

    /// From now on the same journal is asked for, after what this step names.
    fn move_past(&mut self, step: Step) {
        let (journal_id, sequence) = match step {
            Step::Event(event) => (event.journal_id, event.sequence),
            Step::AdministrativeEvent(event) => (event.journal_id, event.sequence),
            Step::Gap(gap) => (gap.journal_id, gap.last_sequence),
            Step::Progress(progress) => (progress.journal_id, progress.sequence),
        };
        self.journal = Some(journal_id);
        self.from = sequence.saturating_add(1);
    }
}

/// Tells the operator, beside the events. Nothing is left to do where even this cannot be written.
fn notice(text: &str) {
    drop(writeln!(io::stderr().lock(), "toolgate: {text}"));
}
