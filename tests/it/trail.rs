//! The audit trail of a real gate: what is deleted of it, and what an auditor makes of it.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use toolgate::proto::WatchRequest;
use toolgate::proto::watch_response::Step;

use crate::support::process::run_text;
use crate::support::running::{Does, Options, World, call, execute, until};
use crate::support::watching::{Watching, events, from, written};

/// Segments and a journal as small as they can be configured.
const SMALL: &str = ", sync: all, segment_bytes: 65536, retention: {bytes: 1048576}";

fn segments(world: &World) -> Vec<PathBuf> {
    let directory = world.directory.path().join("data/journal/segments");
    let mut found: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort_unstable();
    found
}

/// Executes so many reads.
async fn reads(world: &World, count: usize) {
    world.handler.set("patient", Does::Answer(r#"{"done":1}"#.to_owned()));
    for number in 0..count {
        let calls = vec![call(&format!("c{number}"), "patient", "{}")];
        world.client.clone().execute(execute(calls)).await.unwrap();
    }
}

fn verify(world: &World, more: &[&str]) -> (Option<i32>, String, String) {
    let config = world.directory.path().join("toolgate.yaml");
    let mut arguments = vec!["audit", "verify", "--config", config.to_str().unwrap()];
    arguments.extend(more);
    run_text(arguments)
}

fn status(world: &World) -> Value {
    let secret = world.directory.path().join("operator");
    let gate = &world.running().addresses()[0];
    let (_, out, log) = run_text([
        "status",
        "--gate",
        gate,
        "--secret-file",
        secret.to_str().unwrap(),
        "--output",
        "json",
    ]);
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{log}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retention_deletes_is_a_gap_to_watchers_also_after_a_restart() {
    let mut world = World::start_with(Options { audit: SMALL, ..Options::default() }).await;
    let first_file = segments(&world);
    reads(&world, 600).await;
    until("retention deletes", async || {
        reads(&world, 8).await;
        world.metric("toolgate_journal_segments_deleted_total", &[]).await > 0
    })
    .await;
    until("no more is too much", async || {
        let sizes =
            segments(&world).into_iter().filter_map(|file| Some(file.metadata().ok()?.len()));
        let there = i64::try_from(sizes.sum::<u64>()).unwrap();
        there <= 1 << 20 && world.metric("toolgate_journal_bytes", &[]).await == there
    })
    .await;
    assert!(first_file.iter().all(|file| !file.exists()));
    let oldest = world.metric("toolgate_journal_oldest_sequence", &[]).await;
    let oldest = u64::try_from(oldest).unwrap();
    assert!(segments(&world)[0].ends_with(format!("{oldest:020}.jsonl")));

    gap_and_then_all(&world, oldest).await;
    let (code, out, log) = verify(&world, &[]);
    assert_eq!((code, log.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains(&format!("records        {oldest} to ")), "{out}");

    world.restart().await;
    gap_and_then_all(&world, oldest).await;
    world.stop().await;
    the_beginning_is_needed(&world);
}

/// What is told of a journal that lacks its anchor, or the file that this tells of.
fn the_beginning_is_needed(world: &World) {
    let anchor = world.directory.path().join("data/journal/anchor.json");
    let file = segments(world)[0].clone();
    let name = file.file_stem().unwrap().to_str().unwrap();
    let first: u64 = name.parse().unwrap();
    let cases = [
        (
            &anchor,
            format!(
                "sequence 1: deleted: the file is missing, though the first segment begins with record {first}: "
            ),
        ),
        (
            &file,
            format!(
                "sequence {first}: deleted: the file is missing, though {} says that the journal begins with its record {first}",
                anchor.display()
            ),
        ),
    ];
    for (gone, problem) in cases {
        let text = fs::read(gone).unwrap();
        fs::remove_file(gone).unwrap();
        let (code, out, _) = verify(world, &[]);
        fs::write(gone, text).unwrap();
        assert_eq!(code, Some(1));
        assert!(out.starts_with(&format!("{}: {problem}", gone.display())), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_tells_of_a_checkpoint_that_does_not() {
    let mut world = World::start().await;
    reads(&world, 2).await;
    world.stop().await;
    let directory = world.directory.path().join("data/journal/checkpoints");
    let found: Vec<_> = fs::read_dir(directory).unwrap().map(|found| found.unwrap()).collect();
    let path = found[0].path();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"format\":1", "\"format\":2", 1)).unwrap();
    let told = format!("toolgate: {}: the checkpoint does not verify: ", path.display());
    for output in ["human", "json"] {
        let (code, out, log) = verify(&world, &["--output", output]);
        assert_eq!(code, Some(0), "{out}");
        assert!(log.starts_with(&told) && log.lines().count() == 1, "{log}");
        if output == "json" {
            let verified: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(verified["broken_checkpoints"], serde_json::json!([path.to_str().unwrap()]));
        }
    }
}

/// What cannot be read is told with the one mend that fits.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_has_one_mend() {
    let mut world = World::start().await;
    world.stop().await;
    let nowhere = world.directory.path().join("nowhere");
    let expected = format!(
        "{}: unreadable: there is no journal: the file is missing\n  mend: give it the journal of a \
         gate: data.directory with /journal, or --journal DIRECTORY\n",
        nowhere.join("journal.json").display()
    );
    let (code, out, _) = verify(&world, &["--journal", nowhere.to_str().unwrap()]);
    assert_eq!((code, out), (Some(1), expected));

    let manifest = world.directory.path().join("data/journal/journal.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replacen("\"format\":1", "\"format\":7", 1)).unwrap();
    let (code, out, _) = verify(&world, &[]);
    let expected = format!(
        "{}: unreadable: /format is 7, and this version reads 1\n  mend: run the version of \
         toolgate that wrote it\n",
        manifest.display()
    );
    assert_eq!((code, out), (Some(1), expected));
}

/// A watcher from the first record on is told of what is gone, and sent all the rest.
async fn gap_and_then_all(world: &World, oldest: u64) {
    let message = WatchRequest { stop_at_head: true, ..from(1) };
    let steps = Watching::start(&world.channel, message).await.unwrap().drain().await;
    assert!(
        matches!(&steps[0], Step::Gap(gap) if (gap.first_sequence, gap.last_sequence) == (1, oldest - 1)),
        "{:?}",
        steps[0]
    );
    assert!(events(&steps) == written(world.directory.path()), "not what the files hold");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reads_beside_the_gate_and_takes_the_head_that_status_prints() {
    let mut world = World::start().await;
    reads(&world, 8).await;
    let head = status(&world)["journal"]["head"].as_str().unwrap().to_owned();
    reads(&world, 8).await;
    let later = status(&world)["journal"]["head"].as_str().unwrap().to_owned();
    until("all of it is on the disk", async || {
        let (code, out, _) = verify(&world, &["--head", &head, "--head", &later]);
        code == Some(0) && out.ends_with("every record verifies\n")
    })
    .await;
    let (_, out, _) = verify(&world, &["--output", "json"]);
    let verified: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&verified["verifies"], &verified["head"]), (&true.into(), &later.as_str().into()));
    world.stop().await;

    // What an edit leaves, for people and for programs.
    let file = segments(&world)[0].clone();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("user-1", "user-2", 1)).unwrap();
    let (code, out, log) = verify(&world, &[]);
    assert_eq!((code, log.as_str()), (Some(1), ""));
    let expected = format!(
        "{}: line 1: sequence 1: edited: record 1 is not as it was written",
        file.display()
    );
    assert!(out.starts_with(&expected) && out.contains("\n  mend: keep the directory"), "{out}");
    let (code, out, _) = verify(&world, &["--output", "json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &told["verifies"]), (Some(1), &false.into()));
    assert_eq!((&told["fault"]["line"], &told["fault"]["kind"]), (&1.into(), &"edited".into()));

    // A cut tail, once the checkpoints are gone with it.
    let whole: Vec<&str> = text.lines().collect();
    fs::write(&file, format!("{}\n", whole[..20].join("\n"))).unwrap();
    let (code, out, _) = verify(&world, &[]);
    assert_eq!(code, Some(1), "a checkpoint knows better: {out}");
    fs::remove_dir_all(world.directory.path().join("data/journal/checkpoints")).unwrap();
    let (code, out, _) = verify(&world, &["--head", &head]);
    assert_eq!(code, Some(0), "this head is from before: {out}");
    let (code, out, _) = verify(&world, &["--head", &later]);
    assert_eq!(code, Some(1));
    assert!(out.starts_with("sequence 21: cut: the journal ends with record 20"), "{out}");

    for wrong in ["21", "x:00", "21:AB"] {
        assert_eq!(verify(&world, &["--head", wrong]).0, Some(2), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_counts_what_the_gate_counted() {
    let mut world = World::start().await;
    reads(&world, 16).await;
    world.client.execute(execute(vec![call("u", "run_shell", "{}")])).await.unwrap();
    let exposition = world.admin("/metrics").await;
    world.stop().await;
    let config = world.directory.path().join("toolgate.yaml");
    let config = config.to_str().unwrap();
    let (code, out, log) = run_text(["audit", "replay", "--config", config]);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.last(), Some(&"# EOF"));
    let mut compared = 0;
    for line in exposition.lines().filter(|line| line.starts_with("toolgate_tool_calls_total{")) {
        assert!(lines.contains(&format!("{line}.0").as_str()), "{line} is not in\n{out}");
        compared += 1;
    }
    assert_eq!(compared, 2, "{exposition}");

    // The same from the journal's lines, as a sink writes them.
    let file = world.directory.path().join("events.jsonl");
    fs::write(&file, world.journal()).unwrap();
    let from_file = ["audit", "replay", "--config", config, file.to_str().unwrap()];
    assert_eq!(run_text(from_file), (Some(0), out, String::new()));

    // What is outside the closed set is no event, and nothing is printed.
    let text = world.journal().replacen("\"model_suggested\":true", "\"model_suggested\":false", 1);
    fs::write(&file, text).unwrap();
    let (code, out, log) = run_text(from_file);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(log.contains("line 1: its field model_suggested is outside its closed set"), "{log}");
    fs::write(&file, "x".repeat(100_000)).unwrap();
    let (code, out, _) = run_text(from_file);
    assert_eq!((code, out.as_str()), (Some(1), ""));
}
