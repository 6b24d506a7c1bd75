//! `toolgate sample-upstream`: the demo's upstream alone, to try a gate by hand.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Failure, demo, runtime};

/// Serves `search_knowledge_base` and `get_document_status` over a knowledge file.
#[derive(Debug, clap::Args)]
pub struct SampleUpstream {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7500")]
    listen: SocketAddr,
    /// The knowledge file
    #[arg(long, default_value = "deploy/demo/knowledge.yaml")]
    knowledge: PathBuf,
    /// Where support drafts are written
    #[arg(long, default_value = "deploy/demo/drafts")]
    drafts: PathBuf,
}

impl SampleUpstream {
    /// Serves until SIGINT.
    ///
    /// # Errors
    ///
    /// Where the documents cannot be read or the address cannot be bound.
    pub fn run(self) -> Result<bool, Failure> {
        let sample = demo::upstream::SampleUpstream::load(&self.knowledge, self.drafts)?;
        runtime()?.block_on(async {
            let listener = TcpListener::bind(self.listen).await?;
            writeln!(
                io::stdout().lock(),
                "sample upstream on {}; Ctrl-C stops it",
                listener.local_addr()?
            )?;
            let stop = CancellationToken::new();
            let server = tokio::spawn(sample.serve(listener, stop.clone()));
            tokio::signal::ctrl_c().await?;
            stop.cancel();
            server.await??;
            Ok(true)
        })
    }
}
