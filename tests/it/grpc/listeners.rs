//! The Unix socket: its mode, its directory, and who may take its place.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;

use toolgate::app::{Running, StartError};
use toolgate::config;

use crate::support::running::{Options, World, call, execute, write_config};

fn on_socket<'a>() -> Options<'a> {
    Options { listener: Some("unix:run/toolgate.sock".to_owned()), ..Options::default() }
}

#[tokio::test]
async fn a_socket_has_its_mode_in_a_directory_of_its_own_and_goes_with_the_gate() {
    let mut world = World::start_with(on_socket()).await;
    let socket = world.directory.path().join("run/toolgate.sock");
    assert_eq!(world.running().addresses(), [format!("unix:{}", socket.display())]);
    let metadata = fs::metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
    assert_eq!(fs::metadata(socket.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o750);
    let names: Vec<_> = fs::read_dir(socket.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["toolgate.sock"]);
    let response = world
        .client
        .execute(execute(vec![call("c1", "patient", "{}")]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.results[0].result_json, "{}");
    world.stop().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_socket_that_a_dead_process_left_is_replaced() {
    let mut world = World::start_with(on_socket()).await;
    world.stop().await;
    let socket = world.directory.path().join("run/toolgate.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    world.restart().await;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    world.client.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
}

#[tokio::test]
async fn a_socket_that_is_served_is_not_taken_over() {
    let mut world = World::start_with(on_socket()).await;
    let socket = world.directory.path().join("run/toolgate.sock");
    let other = tempfile::tempdir().unwrap();
    let options =
        Options { listener: Some(format!("unix:{}", socket.display())), ..Options::default() };
    let file = write_config(other.path(), "http://127.0.0.1:9", &options);
    let Err(StartError::Bind { address, source }) =
        Running::start(config::load(&file).unwrap()).await
    else {
        panic!("a second gate took the socket");
    };
    assert_eq!(address, format!("unix:{}", socket.display()));
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
    world.client.execute(execute(vec![call("c1", "patient", "{}")])).await.unwrap();
}
