//! The documented queries, answered by a real Prometheus that scrapes two real admin listeners.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use toolgate::domain::audit::Event;
use toolgate::domain::reason::Reason;
use toolgate::ports::{SinkStatus, SinkStatuses};
use toolgate::telemetry::admin;
use toolgate::telemetry::metrics::{Metrics, ToolMetrics};

use super::{DOCUMENT, millis, sink};

/// A private Prometheus, which ends with this.
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
}

/// Answers by the labels that a query keeps, in the order of their names.
type Answers = BTreeMap<Vec<String>, f64>;

const TRIES: usize = 600;
const PAUSE: Duration = Duration::from_millis(50);

/// What one replica counts, once before the first scrape and once after it: series that double
/// are extrapolated alike, so that ratios between them are exact.
///
/// Of 20 successes of `order.lookup` 18 take up to 5 ms and 2 between 100 and 250 ms; of its 25
/// calls 5 time out.
fn batch() -> Vec<Event> {
    let mut events = Vec::new();
    events.extend((0..18).map(|_| millis("order.lookup", Reason::Ok, 4)));
    events.extend((0..2).map(|_| millis("order.lookup", Reason::Ok, 200)));
    events.extend((0..5).map(|_| millis("order.lookup", Reason::AttemptDeadline, 2_001)));
    events.extend((0..4).map(|_| millis("run_shell", Reason::UnknownTool, 0)));
    events
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_queries_answer_what_happened() {
    if !is_installed() {
        assert!(std::env::var_os("CI").is_none(), "CI needs a prometheus binary");
        eprintln!("SKIPPED the documented queries: there is no prometheus binary in PATH");
        return;
    }
    let shutdown = CancellationToken::new();
    let (first, second) = (replica(&shutdown).await, replica(&shutdown).await);
    let replicas = [&first.1, &second.1];
    for tools in replicas {
        tools.replay(&batch());
    }
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Prometheus::start(folder.path(), &[first.0, second.0]).await;
    let calls = "sum(toolgate_tool_calls_total)";
    prometheus.wait(calls, 58.0).await;
    for tools in replicas {
        tools.replay(&batch());
    }
    prometheus.wait(calls, 116.0).await;

    let [throughput, percentile, timeouts, sinks] = queries();

    let answers = prometheus.ask(&throughput).await;
    let labels: Vec<_> = answers.keys().map(|labels| labels.join("/")).collect();
    assert_eq!(labels, ["success/order.lookup", "timeout/order.lookup", "validation/unknown"]);
    let rate = |labels: [&str; 2]| answers[&labels.map(str::to_owned).to_vec()];
    assert!(rate(["timeout", "order.lookup"]) > 0.0);
    assert_close(rate(["success", "order.lookup"]) / rate(["timeout", "order.lookup"]), 4.0);

    // The 19th of 20 is the middle of the two between 0.1 and 0.25 s.
    assert_only(&prometheus.ask(&percentile).await, "order.lookup", 0.175);
    assert_only(&prometheus.ask(&timeouts).await, "order.lookup", 0.2);
    assert_only(&prometheus.ask(&sinks).await, "collector", 1_001.0);

    shutdown.cancel();
}

async fn replica(shutdown: &CancellationToken) -> (SocketAddr, ToolMetrics) {
    let metrics = Metrics::new("1.2.3", 1).unwrap();
    let behind = || vec![SinkStatus { lag: 1_001, ..sink() }];
    metrics.watch_sinks(&(Arc::new(behind) as SinkStatuses));
    let tools = metrics.tools(["order.lookup"]);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(admin::serve(
        listener,
        metrics,
        Arc::new(Vec::new),
        Arc::new(Vec::new),
        shutdown.clone(),
    ));
    (address, tools)
}

/// The four queries of the documentation, in its order.
fn queries() -> [String; 4] {
    let blocks = DOCUMENT.split("```promql\n").skip(1);
    let queries: Vec<_> =
        blocks.map(|block| block.split_once("```").unwrap().0.to_owned()).collect();
    queries.try_into().unwrap()
}

fn assert_only(answers: &Answers, label: &str, wanted: f64) {
    let labels: Vec<_> = answers.keys().collect();
    assert_eq!(labels, [&[label.to_owned()]]);
    assert_close(answers[&vec![label.to_owned()]], wanted);
}

fn assert_close(got: f64, wanted: f64) {
    assert!((got - wanted).abs() < 1e-6, "{got} is not {wanted}");
}

pub fn is_installed() -> bool {
    command().arg("--version").status().is_ok_and(|status| status.success())
}

fn command() -> Command {
    let mut command = Command::new("prometheus");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Prometheus {
    /// Starts one that scrapes `targets`, and waits until it answers.
    pub async fn start(folder: &Path, targets: &[SocketAddr]) -> Self {
        let targets: Vec<_> = targets.iter().map(|target| format!("'{target}'")).collect();
        let configuration = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
             scrape_configs: [{{job_name: toolgate, static_configs: [{{targets: [{}]}}]}}]\n",
            targets.join(", ")
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, configuration).unwrap();
        // It cannot be told to take a free port, and the one found here may be gone by then.
        for _ in 0..3 {
            let free = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let process = command()
                .arg(format!("--config.file={}", file.display()))
                .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .spawn()
                .unwrap();
            let mut started = Self { process, address };
            if started.answers().await {
                return started;
            }
        }
        panic!("prometheus does not start");
    }

    async fn answers(&mut self) -> bool {
        for _ in 0..TRIES {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            if get(self.address, "/-/ready").await.is_some() {
                return true;
            }
            tokio::time::sleep(PAUSE).await;
        }
        false
    }

    /// Polls until the query's only answer is `wanted`.
    pub async fn wait(&self, query: &str, wanted: f64) {
        let mut last = Answers::new();
        for _ in 0..TRIES {
            last = self.ask(query).await;
            if last.values().any(|value| (value - wanted).abs() < 1e-9) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{query} never was {wanted}; at last it was {last:?}");
    }

    async fn ask(&self, query: &str) -> Answers {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in query.bytes() {
            write!(path, "%{byte:02x}").unwrap();
        }
        let body = get(self.address, &path).await.expect("an answer to a query");
        let answer: Value = serde_json::from_str(&body).unwrap();
        let series = answer["data"]["result"].as_array().unwrap();
        series
            .iter()
            .map(|one| {
                let labels = one["metric"].as_object().unwrap().values();
                let labels = labels.map(|label| label.as_str().unwrap().to_owned()).collect();
                (labels, one["value"][1].as_str().unwrap().parse().unwrap())
            })
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The body of an answer with status 200. HTTP/1.0, so that it comes in one piece.
async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.to_owned())
}
