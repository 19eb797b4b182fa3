//! A PostgreSQL server for a bench: the one that `LOGREEL_TEST_POSTGRES` names, or one of its own, as it comes
//! but for where it listens: `fsync` is on.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use logreel_store::postgres::Options;
use logreel_store::{Env, PostgresStore, SystemEnv};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::place::Place;

/// More than one run's steps fill.
const SEGMENTS: usize = 8;

/// A schema of its own on a server; both are gone with it.
pub struct Server {
    pub url: String,
    locks: TempDir,
    own: Option<Own>,
}

impl Server {
    /// `None`, and a word about it, where there is no PostgreSQL.
    pub async fn find(place: &Place) -> Result<Option<Self>> {
        let (server, own) = match std::env::var("LOGREEL_TEST_POSTGRES") {
            Ok(url) => (url, None),
            Err(_) => match Own::start(place)? {
                Some(own) => {
                    own.age().await?;
                    (own.url(), Some(own))
                }
                None => {
                    eprintln!("PostgreSQL is not measured: it is not installed here");
                    return Ok(None);
                }
            },
        };
        let schema = format!("bench{:016x}", SystemEnv.random_u64());
        let and = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{and}options=-csearch_path%3D{schema}");
        let server = Self {
            url,
            locks: tempfile::tempdir()?,
            own,
        };
        let client = server.connect().await?;
        let fsync: String = client.query_one("SHOW fsync", &[]).await?.try_get(0)?;
        ensure!(
            fsync == "on",
            "a server with fsync = {fsync} measures nothing that is durable"
        );
        client
            .batch_execute(&format!("CREATE SCHEMA {schema}"))
            .await?;
        Ok(Some(server))
    }

    /// A connection without anything of ours.
    pub async fn connect(&self) -> Result<Client> {
        connect(&self.url).await
    }

    pub async fn store(&self) -> Result<Arc<PostgresStore>> {
        let options = Options {
            create: true,
            locks: Some(self.locks.path().to_owned()),
            ..Options::default()
        };
        Ok(Arc::new(PostgresStore::open(&self.url, options).await?))
    }

    /// Leaves nothing behind on a server that is not its own.
    pub async fn clear(self) -> Result<()> {
        if self.own.is_none() {
            let sql =
                "DO $$ BEGIN EXECUTE 'DROP SCHEMA ' || current_schema() || ' CASCADE'; END $$";
            self.connect().await?.batch_execute(sql).await?;
        }
        Ok(())
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .context("PostgreSQL is not there")?;
    tokio::spawn(async move {
        // Lost with the server in the end; before that whoever asks is told.
        drop(connection.await);
    });
    Ok(client)
}

/// A server of our own; stopped when it is dropped.
struct Own {
    programs: PathBuf,
    folder: PathBuf,
    sockets: TempDir,
}

impl Own {
    fn start(place: &Place) -> Result<Option<Self>> {
        let Some(programs) = programs()? else {
            return Ok(None);
        };
        let own = Self {
            programs,
            folder: place.file("postgres"),
            sockets: tempfile::tempdir()?,
        };
        std::fs::create_dir_all(&own.folder)?;
        if is_root() {
            // The server does not run as root, and its user must get there.
            for folder in [Some(own.folder.as_path()), own.folder.parent()] {
                let folder = folder.context("a folder in a folder")?;
                std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711))?;
            }
            for folder in [&*own.folder, own.sockets.path()] {
                done(Command::new("chown").arg("postgres").arg(folder))?;
            }
        }
        let data = own.folder.join("data");
        let mut command = own.command("initdb");
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]);
        done(command.arg("-D").arg(&data))?;
        let options = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}' -c max_connections=200 -c fsync=on",
            own.sockets.path().display()
        );
        let mut command = own.command("pg_ctl");
        command.arg("-D").arg(&data).arg("-l");
        command.arg(own.folder.join("log"));
        done(command.args(["-w", "-o", &options, "start"]))?;
        Ok(Some(own))
    }

    /// A server that has run for a while has segments of its WAL to use again. To make one takes as long as hundreds
    /// of INSERTs, and whether ours or a bare one meets that is chance.
    async fn age(&self) -> Result<()> {
        let client = connect(&self.url()).await?;
        for _ in 0..SEGMENTS {
            let sql = "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()";
            client.batch_execute(sql).await?;
        }
        client.batch_execute("CHECKPOINT").await?;
        Ok(())
    }

    fn url(&self) -> String {
        let sockets = self.sockets.path().display().to_string();
        format!(
            "postgres://postgres@{}/postgres",
            sockets.replace('/', "%2F")
        )
    }

    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("runuser");
        command.args(["-u", "postgres", "--"]).arg(program);
        command
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut command = self.command("pg_ctl");
        command.arg("-D").arg(self.folder.join("data"));
        if let Err(error) = done(command.args(["-m", "immediate", "stop"])) {
            eprintln!("the bench's own PostgreSQL goes on: {error:#}");
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where the newest server's programs are, which are not on the PATH.
fn programs() -> Result<Option<PathBuf>> {
    let all = Path::new("/usr/lib/postgresql");
    if !all.exists() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for version in std::fs::read_dir(all)? {
        let version = version?;
        let number: Option<u32> = version.file_name().to_str().and_then(|it| it.parse().ok());
        let programs = version.path().join("bin");
        if let Some(number) = number
            && programs.join("initdb").exists()
        {
            found.push((number, programs));
        }
    }
    Ok(found.into_iter().max().map(|(_, programs)| programs))
}

/// Runs it to its end. It gets no pipe of ours: a server that it leaves behind would keep it open.
fn done(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    ensure!(
        status.success(),
        "{shown} failed ({status}); can user postgres get to this folder? name another --dir"
    );
    Ok(())
}
