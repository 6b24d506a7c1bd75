//! The issuers of callers' tokens, whose key files are followed while the gate runs.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::adapters::watched::Contents;
use crate::config::JwtConfig;
use crate::grpc::callers::jwt::Issuers;
use crate::grpc::callers::jwt_keys::KeySource;
use crate::telemetry::metrics::Metrics;

/// Key files that are followed until this is dropped.
pub(super) type Following = JoinSet<()>;

/// Makes the issuers, and begins to follow their key files: keys that are found changed
/// replace the old ones at once, and those that cannot be used replace nothing.
pub(super) fn follow(config: Vec<JwtConfig>, metrics: &Metrics) -> (Arc<Issuers>, Following) {
    let (mut issuers, mut sources) = (Vec::new(), Vec::new());
    for JwtConfig { terms, source, keys, files } in config {
        let name = terms.issuer.clone();
        issuers.push((terms, keys));
        sources.push((name, source, files));
    }
    let issuers = Arc::new(Issuers::new(issuers));
    let mut following = JoinSet::new();
    for (index, (name, source, files)) in sources.into_iter().enumerate() {
        let (issuers, metrics) = (Arc::clone(&issuers), metrics.clone());
        following.spawn(files.follow(move |contents| {
            let are_taken = take(&issuers, index, &name, &source, contents);
            metrics.issuer_keys_read(are_taken);
        }));
    }
    (issuers, following)
}

/// Whether the keys of the changed files are in force now.
fn take(
    issuers: &Issuers,
    index: usize,
    name: &str,
    source: &KeySource,
    contents: &Contents,
) -> bool {
    let keys = match contents {
        Ok(contents) => source.keys(contents).map_err(|fault| fault.to_string()),
        Err(fault) => Err(fault.to_string()),
    };
    match keys {
        Ok(keys) => {
            let count = keys.ids().count();
            issuers.replace_keys(index, keys);
            tracing::info!(address = name, count, "an issuer's keys have changed");
            true
        }
        Err(fault) => {
            tracing::error!(
                address = name,
                fault,
                "an issuer's new keys cannot be used; the old ones stay"
            );
            false
        }
    }
}
