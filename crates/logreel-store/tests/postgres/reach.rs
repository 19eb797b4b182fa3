//! Ways in: TLS, passwords, several hosts, and settings that must be as they are wanted. On a server of its own.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use logreel_store::postgres::Options;
use logreel_store::{Error, PostgresStore, RunStore};
use tempfile::TempDir;

use crate::proxy::{CUT, Proxy};
use crate::world::{in_schema, options, server, stranger};

/// Set for the process that this test starts of itself, to give it another environment.
const CHILD: &str = "LOGREEL_TEST_REACH";
const PASSWORD: &str = "hunter2/@:";

/// A server that asks for a password, with a certificate for `localhost` and no other name.
pub struct Server {
    folder: TempDir,
    port: u16,
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

/// A program of the server, as a user that it runs as.
fn program(name: &str) -> Command {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let bin = |it: std::fs::DirEntry| it.path().join("bin").join(name);
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(bin)
        .filter(|it| it.exists())
        .collect();
    found.sort();
    let path = found.pop().expect("its programs are there");
    if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(path);
        command
    } else {
        Command::new(path)
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|it| std::os::unix::fs::MetadataExt::uid(&it) == 0)
}

/// As it is written in a URL.
fn encoded(text: &str) -> String {
    let text = text.replace('/', "%2F").replace('@', "%40");
    text.replace(':', "%3A")
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    pub fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        make_certificates(path);
        std::fs::write(path.join("password"), PASSWORD).unwrap();
        std::fs::create_dir(path.join("data")).unwrap();
        if is_root() {
            run(Command::new("chown").args(["-R", "postgres"]).arg(path));
        }
        let data = path.join("data");
        run(program("initdb")
            .args([
                "-U",
                "postgres",
                "-A",
                "scram-sha-256",
                "-E",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ])
            .arg("-D")
            .arg(&data)
            .arg("--pwfile")
            .arg(path.join("password")));
        // As late as can be: others may be given it meanwhile.
        let port = free_port();
        let shown = path.display();
        let settings = format!(
            "-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={shown} -c ssl=on \
             -c ssl_cert_file={shown}/server.crt -c ssl_key_file={shown}/server.key -c fsync=off"
        );
        run(program("pg_ctl")
            .args(["start", "-w", "-s", "-o", &settings, "-D"])
            .arg(&data)
            .arg("-l")
            .arg(path.join("log"))
            .stdout(Stdio::null()));
        Self { folder, port }
    }

    /// As if it had crashed: all connections are gone, and what was flushed is there.
    pub fn crash_and_start(&self) {
        run(program("pg_ctl")
            .args(["restart", "-m", "immediate", "-w", "-s", "-D"])
            .arg(self.folder.path().join("data"))
            .arg("-l")
            .arg(self.folder.path().join("log"))
            .stdout(Stdio::null()));
    }

    /// Without TLS.
    pub fn url(&self) -> String {
        let password = encoded(PASSWORD);
        let port = self.port;
        format!("postgres://postgres:{password}@127.0.0.1:{port}/postgres?sslmode=disable")
    }

    fn roots(&self) -> String {
        let path = self.folder.path().join("ca.crt");
        path.display().to_string().replace('/', "%2F")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        run(program("pg_ctl")
            .args(["stop", "-m", "immediate", "-s", "-D"])
            .arg(self.folder.path().join("data")));
    }
}

fn make_certificates(folder: &Path) {
    let openssl = |args: &str| {
        run(Command::new("openssl")
            .current_dir(folder)
            .args(args.split(' ')));
    };
    openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=ours \
         -keyout ca.key -out ca.crt",
    );
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost \
         -keyout server.key -out server.csr",
    );
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile names \
         -out server.crt",
    );
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(folder.join("server.key"), mode).unwrap();
}

/// Opens it, and tells how that ended in words. None of them may be the password.
async fn reach(url: &str) -> Result<(), String> {
    let locks = TempDir::new().unwrap();
    match PostgresStore::open(url, options(&locks)).await {
        Ok(store) => {
            assert_eq!(store.stats().await.expect("it can be read").events, 0);
            assert!(!format!("{store:?}").contains("hunter2"));
            Ok(())
        }
        Err(error) => {
            let told = format!("{error} {error:?}");
            assert!(!told.contains("hunter2"), "{told}");
            Err(told)
        }
    }
}

/// The same in a process with other variables.
fn reach_with(url: &str, variables: &[(&str, &str)]) -> Result<(), String> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([
            "--exact",
            "reach::a_server_is_reached_by_tls_and_password_only_on_postgres",
        ])
        .arg("--nocapture")
        .env_remove("PGPASSWORD")
        .env("HOME", "/nowhere")
        .env(CHILD, url)
        .envs(variables.iter().copied());
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("hunter2"), "{said}");
    match output.status.success() {
        true => Ok(()),
        false => Err(said),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_reached_by_tls_and_password_only_on_postgres() {
    if let Ok(url) = std::env::var(CHILD) {
        reach(&url).await.expect("it is reached");
        return;
    }
    let server = Server::start();
    let (port, roots) = (server.port, server.roots());
    let full = format!("sslmode=verify-full&sslrootcert={roots}");
    let at = |user: &str, host: &str, query: &str| {
        format!("postgres://{user}@{host}:{port}/postgres?{query}")
    };
    let named = format!("postgres:{}", encoded(PASSWORD));

    reach(&at(&named, "localhost", &full))
        .await
        .expect("by the password of the URL");
    reach(&at(
        &named,
        "localhost",
        &format!("sslmode=require&sslrootcert={roots}"),
    ))
    .await
    .expect("required is checked too");
    for (host, query, why) in [
        ("localhost", "sslmode=require", "certificate"),
        ("127.0.0.1", full.as_str(), "certificate"),
    ] {
        let refused = reach(&at(&named, host, query))
            .await
            .expect_err("not this one");
        assert!(refused.to_lowercase().contains(why), "{refused}");
    }
    let wrong = reach(&at("postgres:hunter2", "localhost", &full)).await;
    assert!(wrong.expect_err("a wrong one").contains("password"));

    // From the environment, and from a file that nobody else can read.
    let plain = at("postgres", "localhost", &full);
    assert!(reach_with(&plain, &[]).is_err(), "without one");
    reach_with(&plain, &[("PGPASSWORD", PASSWORD)]).expect("by PGPASSWORD");
    let file = server.folder.path().join("pgpass");
    let line = format!(
        "localhost:{port}:*:postgres:{}\n",
        PASSWORD.replace(':', "\\:")
    );
    std::fs::write(&file, line).unwrap();
    for (mode, is_used) in [(0o644, false), (0o600, true)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let reached = reach_with(&plain, &[("PGPASSFILE", file.to_str().unwrap())]);
        assert_eq!(reached.is_ok(), is_used, "{mode:o}: {reached:?}");
    }

    // Of several hosts the one that is there.
    let dead = free_port();
    let several = format!(
        "postgres://{named}@localhost:{dead},localhost:{port}/postgres?target_session_attrs=read-write&{full}"
    );
    reach(&several).await.expect("by the second host");
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&several, options(&locks)).await;
    let described = store.unwrap().describe().await.expect("a description");
    assert_eq!(described.address, Some(format!("127.0.0.1:{port}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_not_as_it_was_told_to_be_is_refused_on_postgres() {
    let and = |url: &str| if url.contains('?') { '&' } else { '?' };
    let (url, _) = in_schema(&server());
    for (setting, named) in [
        ("-csynchronous_commit=off", "synchronous_commit"),
        ("-cstatement_timeout=0", "statement_timeout"),
        (
            "-cdefault_transaction_isolation=serializable",
            "default_transaction_isolation",
        ),
    ] {
        let url = format!("{url}%20{}", setting.replace('=', "%3D"));
        let locks = TempDir::new().unwrap();
        let refused = PostgresStore::open(&url, options(&locks)).await;
        let Err(Error::Invalid { why, .. }) = refused else {
            panic!("{setting} is refused, not {refused:?}")
        };
        assert!(why.contains(named), "{why}");
    }
    // Told after the start, as a pooler needs it.
    let pooled = format!("{url}{}pooler=session&doorbell=off", and(&url));
    let locks = TempDir::new().unwrap();
    let store = PostgresStore::open(&pooled, options(&locks)).await;
    let store = store.expect("it is opened in its schema");
    assert_eq!(store.stats().await.expect("it can be read").events, 0);
    let reader = Options {
        create: false,
        ..options(&locks)
    };
    let same = PostgresStore::open(&url, reader).await;
    same.expect("it is the same store without the pooler");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_silent_takes_no_beat_from_the_one_behind_it_on_postgres() {
    let (first, last) = (Proxy::start().await, Proxy::start().await);
    // Connections are taken, and nobody is there: as a machine whose processes hang.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = |url: &str| {
        let (_, rest) = url.split_once('@').unwrap();
        rest.split('/').next().unwrap().to_owned()
    };
    let hosts = [
        host(&first.url),
        silent.local_addr().unwrap().to_string(),
        host(&last.url),
    ];
    let url = first.url.replace(&hosts[0], &hosts.join(","));
    let (url, _) = in_schema(&format!("{url}&connect_timeout=2"));
    let locks = TempDir::new().unwrap();
    let options = Options {
        // A beat has two seconds for all three.
        lease: Duration::from_secs(8),
        ..options(&locks)
    };
    let store = PostgresStore::open(&url, options).await.unwrap();
    let owner = stranger();
    store.join(&owner).await.expect("it joins");
    store.beat(owner.id).await.expect("it is heard");
    first.set(CUT);
    // The first one may find its connection lost.
    if let Err(error) = store.beat(owner.id).await {
        println!("the first beat: {error}");
        store.beat(owner.id).await.expect("the third host hears it");
    }
    let stats = store.stats().await;
    assert_eq!(stats.expect("and all else goes there too").events, 0);
}
