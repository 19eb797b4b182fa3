//! Reaching the database: what a URL says, where a password may be, TLS, and the pool of connections.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::clock::Clock;
use super::failure::failed;
use super::schema::CLOCK;
use crate::Error;

/// How long a server may take to answer a new connection, unless the URL says.
const CONNECT: Duration = Duration::from_secs(5);
/// How long one waits for a connection of the pool while all are in use.
const WAIT: Duration = Duration::from_secs(10);
/// A peer that says nothing for this long is asked whether it is there.
const SILENT: Duration = Duration::from_secs(10);

/// What every connection is told. A statement that hangs, for a lock or for a disk, is given up well below
/// half of the time that readers of all runs look back (`news::GUARD`).
const SETTINGS: &str = "-c statement_timeout=8s -c idle_in_transaction_session_timeout=8s \
     -c default_transaction_isolation=read\\ committed";

/// Where the database is, without its password.
pub(super) struct Place {
    config: Config,
    roots: Option<PathBuf>,
    /// What may be shown of it.
    pub shown: String,
    /// Which store it is: what is shown, and what else of the URL chooses one, such as a schema.
    pub identity: String,
}

impl Place {
    /// Reads a URL. What is wrong with it is told without it: it may hold a password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let invalid = |why: String| Error::Invalid {
            path: PathBuf::from("postgres://…"),
            why,
        };
        let (url, roots) = own_options(url);
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map_or(String::new(), |it| it.to_string());
            invalid(format!(
                "the URL is not understood ({why}); write postgres://USER@HOST:PORT/DATABASE"
            ))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(invalid(
                "the URL names no host; write postgres://USER@HOST:PORT/DATABASE".to_owned(),
            ));
        }
        if config.get_password().is_none()
            && let Some(password) = password(&config)
        {
            config.password(password);
        }
        let chosen = config.get_options().unwrap_or_default().to_owned();
        let options = match config.get_options() {
            Some(own) => format!("{SETTINGS} {own}"),
            None => SETTINGS.to_owned(),
        };
        config.options(options);
        config.application_name("logreel");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        config.keepalives_idle(SILENT);
        config.keepalives_interval(SILENT / 2);
        config.keepalives_retries(2);
        config.tcp_user_timeout(SILENT * 2);
        // Of several hosts the one that takes writes.
        if config.get_hosts().len() > 1
            && config.get_target_session_attrs() == TargetSessionAttrs::Any
        {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let shown = shown(&config);
        Ok(Self {
            config,
            roots,
            identity: format!("{shown} {chosen}"),
            shown,
        })
    }

    /// A pool of connections; nothing is connected yet.
    pub fn pool(self, size: usize, clock: Arc<Clock>) -> Result<Pool, Error> {
        let how = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let remote =
            self.config.get_hosts().iter().any(is_tcp) || !self.config.get_hostaddrs().is_empty();
        let manager = match self.config.get_ssl_mode() {
            SslMode::Disable => Manager::from_config(self.config, NoTls, how),
            _ if !remote => Manager::from_config(self.config, NoTls, how),
            _ => {
                let tls = MakeRustlsConnect::new(tls(self.roots.as_deref())?);
                Manager::from_config(self.config, tls, how)
            }
        };
        // Every connection may be to another server than the one before: its clock is what counts.
        let look = Hook::async_fn(move |client, _| {
            let clock = clock.clone();
            Box::pin(async move {
                let sql = format!("SELECT {CLOCK}");
                let row = client.query_one(sql.as_str(), &[]).await;
                let row = row.map_err(HookError::Backend)?;
                clock.set(row.try_get(0).map_err(HookError::Backend)?);
                Ok(())
            })
        });
        Pool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT))
            .post_create(look)
            .build()
            .map_err(|error| Error::Bug(format!("a pool of connections: {error}")))
    }
}

/// A connection of the pool.
pub(super) async fn get(pool: &Pool) -> Result<deadpool_postgres::Object, Error> {
    use deadpool_postgres::PoolError;
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            match failed(error) {
                // A database that cannot even be reached is no mistake of ours.
                Error::Bug(what) => Error::unavailable(what),
                other => other,
            }
        }
        other => Error::unavailable(format!("no connection to the database: {other}")),
    })
}

fn is_tcp(host: &Host) -> bool {
    matches!(host, Host::Tcp(_))
}

/// Takes out of a URL what the client does not know: where the certificate of an authority is, and the
/// stricter modes. Ours is the strictest already: with TLS the certificate and the name are always checked.
fn own_options(url: &str) -> (String, Option<PathBuf>) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let mut roots = None;
    let mut kept = Vec::new();
    for option in query.split('&') {
        match option.split_once('=') {
            Some(("sslrootcert", path)) => roots = Some(PathBuf::from(decode(path))),
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            _ => kept.push(option),
        }
    }
    (format!("{base}?{}", kept.join("&")), roots)
}

/// The text behind `%2F` and the like.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(code) => {
                plain.push(code);
                at += 3;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn tls(roots: Option<&Path>) -> Result<ClientConfig, Error> {
    let bad = |what: String| Error::unavailable(format!("TLS cannot be set up: {what}"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(error.to_string()))?;
    let Some(path) = roots else {
        let builder = builder.with_platform_verifier();
        let builder = builder.map_err(|error| bad(error.to_string()))?;
        return Ok(builder.with_no_client_auth());
    };
    let unreadable = |error: &dyn std::fmt::Display| bad(format!("{}: {error}", path.display()));
    let mut store = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
        let root = root.map_err(|error| unreadable(&error))?;
        store.add(root).map_err(|error| unreadable(&error))?;
    }
    Ok(builder.with_root_certificates(store).with_no_client_auth())
}

/// The URL as people may see it.
fn shown(config: &Config) -> String {
    let mut shown = "postgres://".to_owned();
    if let Some(user) = config.get_user() {
        shown.push_str(user);
        shown.push('@');
    }
    for (index, host) in config.get_hosts().iter().enumerate() {
        if index > 0 {
            shown.push(',');
        }
        match host {
            Host::Tcp(name) => shown.push_str(name),
            #[cfg(unix)]
            Host::Unix(path) => shown.push_str(&path.display().to_string()),
        }
        if let Some(port) = port(config, index) {
            write!(shown, ":{port}").expect("a text takes more text");
        }
    }
    if let Some(database) = config.get_dbname() {
        shown.push('/');
        shown.push_str(database);
    }
    shown
}

fn port(config: &Config, index: usize) -> Option<u16> {
    let ports = config.get_ports();
    ports.get(index).or_else(|| ports.first()).copied()
}

/// The password from the environment, or from the user's file of passwords.
fn password(config: &Config) -> Option<String> {
    if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|it| !it.is_empty()) {
        return Some(password);
    }
    let file = std::env::var_os("PGPASSFILE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    let file = file.or_else(home)?;
    let text = read_private(&file)?;
    let user = config.get_user()?;
    let database = config.get_dbname().unwrap_or(user);
    config
        .get_hosts()
        .iter()
        .enumerate()
        .find_map(|(index, host)| {
            let host = match host {
                Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                Host::Unix(_) => "localhost".to_owned(),
            };
            let port = port(config, index).unwrap_or(5432).to_string();
            find_password(&text, [&host, &port, database, user])
        })
}

/// A file of passwords that others may read is not used, as with PostgreSQL's own programs.
fn read_private(file: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(file).ok()?;
    if metadata.permissions().mode() & 0o077 != 0 {
        let file = file.display();
        tracing::warn!("{file} is not used for passwords: others may read it (chmod 600)");
        return None;
    }
    std::fs::read_to_string(file).ok()
}

/// Lines are `host:port:database:user:password`; `*` fits anything, `\` keeps a colon.
fn find_password(text: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let mut fields = vec![String::new()];
            let mut chars = line.chars();
            while let Some(char) = chars.next() {
                match char {
                    ':' if fields.len() < 5 => fields.push(String::new()),
                    '\\' => fields.last_mut()?.extend(chars.next()),
                    other => fields.last_mut()?.push(other),
                }
            }
            let password = fields.get(4)?.clone();
            let fits = |(field, wanted): (&String, &&str)| field == "*" || field == *wanted;
            fields.iter().zip(&wanted).all(fits).then_some(password)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_without_its_password() {
        let url = "postgres://me:hunter2@db.example:5433,other/runs?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem";
        let place = Place::parse(url).unwrap();
        assert_eq!(place.shown, "postgres://me@db.example:5433,other:5432/runs");
        assert_eq!(place.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(place.roots.as_deref(), Some(Path::new("/etc/ca.pem")));
        for wrong in [
            "postgres://me:hunter2@",
            "postgres://me:hunter2@h/d?colour=red",
        ] {
            let Err(error) = Place::parse(wrong) else {
                panic!("{wrong} is no place")
            };
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_password_is_found_by_its_line() {
        let text = "# mine\nh:5432:d:u:a\\:b\n*:*:d2:u:second\n";
        let find = |host, database| find_password(text, [host, "5432", database, "u"]);
        assert_eq!(find("h", "d").as_deref(), Some("a:b"));
        assert_eq!(find("x", "d2").as_deref(), Some("second"));
        assert_eq!(find("x", "d"), None);
    }
}
