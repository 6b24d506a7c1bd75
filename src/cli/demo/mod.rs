//! `toolgate demo`: a gated conversation, told as it happens.
//!
//! Everything is real: the sample upstream and the gate are gRPC servers on
//! ports of their own, the calls go over the wire, the audit is read from the
//! journal's files and the metrics from the admin address.

mod confirmed;
mod scenes;
mod stage;
mod story;
pub mod upstream;

use std::path::PathBuf;

use super::{Failure, runtime};
use stage::{Stage, TICKET_TTL, Who};
use story::Story;

/// Plays the demo in a temporary directory.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// The demo's configuration, policy and knowledge
    #[arg(long, default_value = "deploy/demo", value_name = "DIRECTORY")]
    from: PathBuf,
    /// Leave both servers running afterwards, with lines to try
    #[arg(long)]
    keep: bool,
}

impl Demo {
    /// Whether everything happened as it should.
    ///
    /// # Errors
    ///
    /// Where the demo could not be set up or played at all.
    pub fn run(self) -> Result<bool, Failure> {
        runtime()?.block_on(async {
            let mut stage = Stage::set(&self.from).await?;
            let mut story = Story::new();
            Story::opening(&stage)?;
            for scene in scenes::all() {
                let answer = stage.execute(&scene, &Who::user()).await?;
                let handler_calls = stage.handler_calls_since_last();
                story.scene(&scene, &answer, handler_calls)?;
            }
            confirmed::play(&mut stage, &mut story, TICKET_TTL).await?;
            let journal = stage.journal()?;
            story.audit(&journal)?;
            story.metrics(&stage.metrics().await?)?;
            let good = story.ending()?;
            if self.keep {
                Story::keep(&stage)?;
                tokio::signal::ctrl_c().await?;
            }
            stage.strike().await?;
            Ok(good)
        })
    }
}
