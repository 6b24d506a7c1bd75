//! The servers and the network that tests of PostgreSQL stand on.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::postgres::{self, Server};
use crate::support::proxy::{Cut, Proxy, Way};

#[test]
fn a_server_gives_each_test_a_database_of_its_own() {
    let Some(server) = postgres::server() else { return };
    let (one, other) = (server.database(), server.database());
    one.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1), (2)");
    assert_eq!(one.sql("SELECT n, current_user = current_database() FROM t"), "1|t\n2|t");
    assert!(other.try_sql("SELECT n FROM t").unwrap_err().contains("does not exist"));

    // The password counts, also over TCP under TLS; and nothing is root's.
    let tcp = |database: &postgres::Database<'_>| {
        format!(
            "host=localhost port={} user={} password={} dbname={} sslmode=verify-full sslrootcert={}",
            server.port,
            database.user,
            database.password,
            one.name,
            server.ca().display()
        )
    };
    let secure = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(server.try_sql(&tcp(&one), secure).unwrap(), "t|TLSv1.3");
    let wrong = tcp(&one).replace(&one.password, &other.password);
    assert!(server.try_sql(&wrong, secure).unwrap_err().contains("password"));
    assert_ne!(fs::metadata(server.directory.join("data")).unwrap().uid(), 0);
    assert_eq!(server.sql("SHOW fsync"), "on");

    let name = one.name.clone();
    drop(one);
    let left = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    assert_eq!(server.sql(&left), "0");
}

#[test]
fn a_servers_end_leaves_nothing() {
    let Some(server) = Server::start_own(&[("fsync", "off")]) else { return };
    assert_eq!(server.sql("SHOW fsync"), "off");
    let database = server.database();
    database.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (7)");
    let port = server.port;
    server.freeze();
    server.thaw();
    for end in [Server::stop, Server::kill] {
        end(&server);
        assert!(database.try_sql("SELECT 1").is_err());
        server.start();
        assert_eq!((database.sql("SELECT n FROM t"), server.port), ("7".to_owned(), port));
    }
    let directory = server.directory.clone();
    let process = fs::read_to_string(directory.join("data/postmaster.pid")).unwrap();
    let process = format!("/proc/{}", process.lines().next().unwrap());
    assert!(Path::new(&process).exists());
    drop(database);
    server.freeze();
    drop(server);
    assert!(!Path::new(&process).exists());
    assert!(!directory.exists());
}

/// A server that answers each piece with `ok N`, N being how many bytes have come.
async fn counting() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut buffer, mut all) = ([0; 64], 0);
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    all += read;
                    stream.write_all(format!("ok {all};").as_bytes()).await.unwrap();
                }
            });
        }
    });
    address
}

/// Sends and takes the answer; None if the connection ends.
async fn ask(stream: &mut TcpStream, bytes: &str) -> Option<String> {
    stream.write_all(bytes.as_bytes()).await.ok()?;
    answer(stream).await
}

async fn answer(stream: &mut TcpStream) -> Option<String> {
    let mut all = Vec::new();
    while !all.ends_with(b";") {
        all.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(all).unwrap())
}

#[tokio::test]
async fn a_network_fails_on_demand() {
    let proxy = Proxy::start(counting().await).await;
    let connect = async || TcpStream::connect(proxy.address).await.unwrap();
    let mut one = connect().await;
    assert_eq!(ask(&mut one, "12345").await.unwrap(), "ok 5;");

    // What hangs arrives when it passes again.
    for way in [Way::Up, Way::Down] {
        proxy.hang(way);
        one.write_all(b"1").await.unwrap();
        let nothing = tokio::time::timeout(Duration::from_millis(50), one.read_u8());
        nothing.await.unwrap_err();
        proxy.pass();
        assert!(answer(&mut one).await.unwrap().starts_with("ok "));
    }

    proxy.slow(Duration::from_millis(20));
    let start = Instant::now();
    assert!(ask(&mut one, "1").await.is_some());
    assert!(start.elapsed() >= Duration::from_millis(40), "both ways");
    proxy.pass();

    proxy.cut();
    assert_eq!(ask(&mut one, "1").await, None);
    proxy.refuse();
    assert_eq!(ask(&mut connect().await, "1").await, None);
    proxy.pass();

    // One connection, once, at the marker, also where it comes in two pieces.
    for cut in [Cut::Before(b"COMMIT".to_vec()), Cut::Unanswered(b"COMMIT".to_vec()), Cut::After(9)]
    {
        let (mut one, mut other) = (connect().await, connect().await);
        let before = proxy.cuts();
        proxy.cut_once(cut);
        assert_eq!(ask(&mut one, "begin COM").await.unwrap(), "ok 9;");
        assert_eq!(ask(&mut one, "MIT").await, None);
        assert_eq!(ask(&mut other, "and COMMIT").await.unwrap(), "ok 10;");
        assert_eq!(proxy.cuts(), before + 1);
    }
}
