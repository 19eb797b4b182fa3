//! Reaching the database: what a URL says, where a password may be, TLS, and the pool of connections.

use std::fmt::Write as _;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Connect, Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::clock::Clock;
use super::failure::failed;
use super::hosts::Hosts;
use super::schema::CLOCK;
use crate::Error;

/// How long a server may take to answer a new connection, unless the URL says.
const CONNECT: Duration = Duration::from_secs(5);
/// How long one waits for a connection of the pool while all are in use.
const WAIT: Duration = Duration::from_secs(10);
/// A peer that says nothing for this long is asked whether it is there.
const SILENT: Duration = Duration::from_secs(10);

/// What every connection is told, and must say again when it is asked: a setting that went another way (a
/// pooler, the URL, the user's own) would show only when something is lost. A statement that hangs, for a
/// lock or for a disk, is given up well below half of the time that readers of all runs look back
/// (`news::GUARD`).
const SETTINGS: [(&str, &str); 3] = [
    ("statement_timeout", "8s"),
    ("idle_in_transaction_session_timeout", "8s"),
    ("default_transaction_isolation", "read committed"),
];

/// Where the database is, without its password.
pub(super) struct Place {
    config: Config,
    own: Own,
    /// What may be shown of it.
    pub shown: String,
    /// Which store it is: what is shown, and what else of the URL chooses one, such as a schema.
    pub identity: String,
    /// The password, as it is and as the URL has it.
    pub secrets: Vec<String>,
}

/// What a URL says that the client does not know.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    /// The certificate of an authority.
    roots: Option<PathBuf>,
    /// There is a pooler in between, which takes no settings at the start of a connection.
    pooler: bool,
    /// Then these are the settings of the URL.
    options: String,
    /// Nobody is told by notifications.
    silent: bool,
}

impl Place {
    /// Reads a URL. What is wrong with it is told without it: it may hold a password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (url, own) = own_options(url).map_err(invalid)?;
        check_at_signs(&url).map_err(invalid)?;
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
            && let Some(password) = password(&config).map_err(invalid)?
        {
            config.password(password);
        }
        let chosen = match own.pooler {
            true => own.options.clone(),
            false => config.get_options().unwrap_or_default().to_owned(),
        };
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
            secrets: secrets(&config, &url, &shown),
            config,
            own,
            identity: format!("{shown} {chosen}"),
            shown,
        })
    }

    /// Whether others are told by notifications, unless whoever opens the store says.
    pub fn has_doorbell(&self) -> bool {
        !self.own.silent
    }

    /// How connections are made.
    pub fn connector(self) -> Result<Connector, Error> {
        let Self {
            mut config, own, ..
        } = self;
        let remote = config.get_hosts().iter().any(is_tcp) || !config.get_hostaddrs().is_empty();
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ if !remote => None,
            _ => Some(MakeRustlsConnect::new(tls(own.roots.as_deref())?)),
        };
        let mut settings = Vec::new();
        if own.pooler {
            // Told once the connection is there.
            let ours = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
            settings.extend(ours);
            settings.extend(option_settings(&own.options).map_err(invalid)?);
        } else {
            let mut told = String::new();
            for (name, value) in SETTINGS {
                let value = value.replace(' ', "\\ ");
                write!(told, "-c {name}={value} ").expect("a text takes more text");
            }
            told.push_str(config.get_options().unwrap_or_default());
            config.options(told);
        }
        let each = config.get_connect_timeout().copied().unwrap_or(CONNECT);
        Ok(Connector {
            hosts: Hosts::new(config, each),
            tls,
            settings: Arc::new(settings),
        })
    }
}

fn invalid(why: String) -> Error {
    Error::Invalid {
        path: PathBuf::from("postgres://…"),
        why,
    }
}

/// Makes connections, in the pool and beside it.
#[derive(Clone)]
pub(super) struct Connector {
    hosts: Hosts,
    tls: Option<MakeRustlsConnect>,
    /// What a connection is told once it is there.
    settings: Arc<Vec<(String, String)>>,
}

/// What runs a connection, for as long as it lives.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Connector {
    /// A pool of connections; nothing is connected yet.
    pub fn pool(&self, size: usize, clock: Arc<Clock>) -> Result<Pool, Error> {
        let how = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_connect(self.hosts.config(), self.clone(), how);
        // Every connection may be to another server than the one before: its clock is what counts.
        let settings = self.settings.clone();
        let look = Hook::async_fn(move |client, _| {
            let (clock, settings) = (clock.clone(), settings.clone());
            Box::pin(async move {
                match greet(client, &settings).await {
                    Ok(now) => clock.set(now),
                    Err(Unfit::Failed(error)) => return Err(HookError::Backend(error)),
                    Err(Unfit::Refused(why)) => return Err(HookError::message(why)),
                }
                Ok(())
            })
        });
        Pool::builder(manager)
            .max_size(size)
            // The one that was used last knows its statements and has its plans.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(WAIT + self.hosts.longest()))
            .post_create(look)
            .build()
            .map_err(|error| Error::Bug(format!("a pool of connections: {error}")))
    }

    /// The same, for whoever has so little time that all hosts must be asked within it.
    pub fn within(&self, longest: Duration) -> Self {
        Self {
            hosts: self.hosts.within(longest),
            ..self.clone()
        }
    }

    async fn dial(
        &self,
        heard: Option<mpsc::Sender<String>>,
    ) -> Result<(Client, Driver), tokio_postgres::Error> {
        Ok(match &self.tls {
            None => {
                let (client, connection) = self.hosts.connect(NoTls).await?;
                (client, drive(connection, heard))
            }
            Some(tls) => {
                let (client, connection) = self.hosts.connect(tls.clone()).await?;
                (client, drive(connection, heard))
            }
        })
    }

    /// A connection of its own, beside the pool, and what runs it. What the database tells whoever listens goes
    /// to `heard`.
    pub async fn connect(
        &self,
        heard: Option<mpsc::Sender<String>>,
    ) -> Result<(Client, Driver), Error> {
        let (client, mut driver) = self.dial(heard).await.map_err(reached)?;
        let greeted = tokio::select! {
            greeted = greet(&client, &self.settings) => greeted,
            () = &mut driver => return Err(Error::unavailable("the connection was lost at once")),
        };
        match greeted {
            Ok(_) => Ok((client, driver)),
            Err(Unfit::Failed(error)) => Err(reached(error)),
            Err(Unfit::Refused(why)) => Err(invalid(why)),
        }
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        _: &Config,
    ) -> Pin<
        Box<
            dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>>
                + Send
                + '_,
        >,
    > {
        Box::pin(async move {
            let (client, driver) = self.dial(None).await?;
            Ok((client, tokio::spawn(driver)))
        })
    }
}

/// A database that cannot even be reached is no mistake of ours.
fn reached(error: tokio_postgres::Error) -> Error {
    match failed(error) {
        Error::Bug(what) => Error::unavailable(what),
        other => other,
    }
}

fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    heard: Option<mpsc::Sender<String>>,
) -> Driver
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(note))) => {
                    // Whoever does not keep up finds the rest by looking.
                    if let Some(heard) = &heard
                        && let Err(TrySendError::Closed(_)) =
                            heard.try_send(note.payload().to_owned())
                    {
                        return;
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!("a connection to the database ended: {error}");
                    return;
                }
                None => return,
            }
        }
    })
}

/// Why a connection is not used.
enum Unfit {
    Failed(tokio_postgres::Error),
    Refused(String),
}

impl From<tokio_postgres::Error> for Unfit {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(error)
    }
}

/// Tells a new connection what it must be told, and looks whether it is as it must be. Gives the database's
/// clock.
async fn greet(client: &Client, settings: &[(String, String)]) -> Result<i64, Unfit> {
    for (name, value) in settings {
        let sql = "SELECT set_config($1, $2, false)";
        client.execute(sql, &[name, value]).await?;
    }
    let mut sql = format!("SELECT {CLOCK}, current_setting('synchronous_commit')");
    for (name, _) in SETTINGS {
        write!(sql, ", current_setting('{name}')").expect("a text takes more text");
    }
    let row = client.query_one(sql.as_str(), &[]).await?;
    if row.try_get::<_, &str>(1)? == "off" {
        return Err(Unfit::Refused(
            "synchronous_commit is off, so that the database may lose what it said was stored; turn \
             it on, for the server, the database or the user"
                .to_owned(),
        ));
    }
    for (index, (name, wanted)) in SETTINGS.iter().enumerate() {
        let found: &str = row.try_get(index + 2)?;
        if found != *wanted {
            return Err(Unfit::Refused(format!(
                "{name} is {found} and must be {wanted}: take it out of the URL's options; behind a \
                 pooler add pooler=session to the URL"
            )));
        }
    }
    Ok(row.try_get(0)?)
}

/// The settings in a text of options, `-c name=value` each; a space in a value has a `\` before it.
fn option_settings(options: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = vec![String::new()];
    let mut chars = options.chars();
    while let Some(char) = chars.next() {
        let last = words.len() - 1;
        match char {
            ' ' => words.push(String::new()),
            '\\' => words[last].extend(chars.next()),
            other => words[last].push(other),
        }
    }
    let mut settings = Vec::new();
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let setting = match word.strip_prefix("-c").or_else(|| word.strip_prefix("--")) {
            Some("") => words.next(),
            Some(rest) => Some(rest.to_owned()),
            None => None,
        };
        let setting = setting.as_deref().and_then(|it| it.split_once('='));
        let (name, value) = setting.ok_or("options in the URL are -c NAME=VALUE each")?;
        settings.push((name.to_owned(), value.to_owned()));
    }
    Ok(settings)
}

/// A connection of the pool.
pub(super) async fn get(pool: &Pool) -> Result<deadpool_postgres::Object, Error> {
    use deadpool_postgres::PoolError;
    pool.get().await.map_err(|error| match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            reached(error)
        }
        PoolError::PostCreateHook(HookError::Message(why)) => invalid(why.into_owned()),
        other => Error::unavailable(format!("no connection to the database: {other}")),
    })
}

fn is_tcp(host: &Host) -> bool {
    matches!(host, Host::Tcp(_))
}

/// Takes out of a URL what the client does not know, and the stricter modes. Ours is the strictest already: with
/// TLS the certificate and the name are always checked.
fn own_options(url: &str) -> Result<(String, Own), String> {
    let mut own = Own::default();
    let Some((base, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), own));
    };
    let mut kept = Vec::new();
    let mut options = None;
    for option in query.split('&') {
        match option.split_once('=') {
            Some(("sslrootcert", path)) => own.roots = Some(PathBuf::from(decode(path))),
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            Some(("options", value)) => options = Some((option, value)),
            Some(("pooler", "session")) => own.pooler = true,
            Some(("pooler", _)) => {
                return Err(
                    "pooler=session is all that is known: our statements are prepared and our \
                     settings are a session's, so that a pooler must keep sessions whole"
                        .to_owned(),
                );
            }
            Some(("doorbell", "on")) => own.silent = false,
            Some(("doorbell", "off")) => own.silent = true,
            Some(("doorbell", _)) => return Err("doorbell is on or off".to_owned()),
            _ => kept.push(option),
        }
    }
    match options {
        Some((_, value)) if own.pooler => own.options = decode(value),
        Some((option, _)) => kept.push(option),
        None => {}
    }
    match kept.is_empty() {
        true => Ok((base.to_owned(), own)),
        false => Ok((format!("{base}?{}", kept.join("&")), own)),
    }
}

/// A sign of the URL that is part of a password would make the rest of it part of a host, or of a database, which
/// are shown. The client takes what stands before the first `@`, wherever it is, for a user and a password.
fn check_at_signs(url: &str) -> Result<(), String> {
    let Some((_, rest)) = url.split_once("://") else {
        return Ok(());
    };
    let (before, after) = rest.split_once('@').unwrap_or(("", rest));
    if after.contains('@') || before.contains(['/', '?']) {
        return Err(
            "the URL has a sign too many before an @; in a user or password write %40 for @, %2F for / and %3F for ?"
                .to_owned(),
        );
    }
    Ok(())
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

/// A password that is shorter is also a word of other texts.
const PLAIN_BYTES_MIN: usize = 8;

/// So are these, which keep nothing from anybody: names of fields, for one, would be blotted out.
const PLAIN: [&str; 6] = [
    "password",
    "postgres",
    "postgresql",
    "changeme",
    "logreel",
    "development",
];

/// Whether others may come upon the password where it is none.
fn is_plain(password: &str) -> bool {
    let is_number = password.bytes().all(|byte| byte.is_ascii_digit());
    password.len() < PLAIN_BYTES_MIN || is_number || PLAIN.contains(&&*password.to_lowercase())
}

/// The forms in which others may come upon the password: in the URL, and by itself. A short one, or one that is part of
/// what is shown anyway, such as the name of the user, is by itself only hidden as the value of its variable.
fn secrets(config: &Config, url: &str, shown: &str) -> Vec<String> {
    let password = config.get_password().map(String::from_utf8_lossy);
    let Some(password) = password.filter(|it| !it.is_empty()) else {
        return Vec::new();
    };
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let authority = base.split_once("://").map_or(base, |(_, rest)| rest);
    let user = authority.split_once('@').map_or("", |(user, _)| user);
    let written = user.split_once(':').map(|(_, it)| it);
    let asked = query.split('&').find_map(|it| it.strip_prefix("password="));
    let mut secrets = Vec::new();
    secrets.extend(written.map(|it| format!(":{it}@")));
    secrets.extend(asked.map(|it| format!("password={it}")));
    if shown.contains(&*password) || is_plain(&password) {
        // As `env` prints it, `export -p`, and programs that print their environment as JSON or as a dictionary.
        let printed = ["=", "=\"", "='", "\":\"", "\": \"", "': '"];
        secrets.extend(printed.map(|is| format!("PGPASSWORD{is}{password}")));
    } else {
        secrets.extend(written.or(asked).map(str::to_owned));
        secrets.push(password.into_owned());
    }
    secrets
}

/// The password from the environment, or from the user's file of passwords. The client sends one password to
/// whichever host it reaches, so the file must have the same for all of them.
fn password(config: &Config) -> Result<Option<String>, String> {
    if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|it| !it.is_empty()) {
        return Ok(Some(password));
    }
    let file = std::env::var_os("PGPASSFILE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    match (file.or_else(home), config.get_user()) {
        (Some(file), Some(user)) => match read_private(&file) {
            Some(text) => one_password(config, user, &text),
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

fn one_password(config: &Config, user: &str, text: &str) -> Result<Option<String>, String> {
    let database = config.get_dbname().unwrap_or(user);
    let mut found: Vec<Option<String>> = Vec::new();
    for (index, host) in config.get_hosts().iter().enumerate() {
        let host = match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(_) => "localhost".to_owned(),
        };
        let port = port(config, index).unwrap_or(5432).to_string();
        found.push(find_password(text, [&host, &port, database, user]));
    }
    let first = found.first().cloned().flatten();
    match found.iter().all(|password| *password == first) {
        true => Ok(first),
        false => Err(
            "the file of passwords does not have the same one for all hosts of the URL; one password \
             is sent to whichever host answers"
                .to_owned(),
        ),
    }
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
        assert_eq!(place.own.roots.as_deref(), Some(Path::new("/etc/ca.pem")));
        for wrong in [
            "postgres://me:hunter2@",
            "postgres://me:hunter2@h/d?colour=red",
            "postgres://me:a@hunter2@h/d",
            "postgres://me:12/hunter2@h/d",
            "postgres://me:12?hunter2@h/d",
            "postgres://h/d?user=me&password=12@hunter2",
            "postgres://me@h/d?password=12@hunter2",
            "postgres://me:hunter2@h/d?pooler=transaction",
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
    fn a_password_is_hidden_in_every_form_and_by_itself_unless_it_is_a_word_that_is_shown() {
        let of = |url: &str| Place::parse(url).unwrap().secrets;
        let forms = [":p%40ssword@", "p%40ssword", "p@ssword"].map(str::to_owned);
        assert_eq!(of("postgres://me:p%40ssword@h/d?sslmode=disable"), forms);
        let forms = ["password=p%40ssword", "p%40ssword", "p@ssword"].map(str::to_owned);
        assert_eq!(of("postgres://me@h/d?password=p%40ssword"), forms);
        for name in ["operators", "short", "postgres"] {
            let found = of(&format!("postgres://operators:{name}@h/d"));
            let forms = [
                format!(":{name}@"),
                format!("PGPASSWORD={name}"),
                format!("PGPASSWORD=\"{name}"),
                format!("PGPASSWORD='{name}"),
                format!("PGPASSWORD\":\"{name}"),
                format!("PGPASSWORD\": \"{name}"),
                format!("PGPASSWORD': '{name}"),
            ];
            assert_eq!(found, forms);
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

    #[test]
    fn a_password_of_one_host_is_not_sent_to_another() {
        let hosts = |url: &str| url.parse::<Config>().unwrap();
        let text = "a:*:*:u:first\nb:*:*:u:second\nc:*:*:u:first\n";
        let find = |url| one_password(&hosts(url), "u", text);
        assert_eq!(find("postgres://u@a,c/d"), Ok(Some("first".to_owned())));
        assert_eq!(find("postgres://u@x,y/d"), Ok(None));
        for url in [
            "postgres://u@a,b/d",
            "postgres://u@a,x/d",
            "postgres://u@x,a/d",
        ] {
            let refused = find(url).expect_err("one of them is not for both");
            assert!(!refused.contains("first"), "{refused}");
        }
    }

    #[test]
    fn options_of_the_url_are_settings_behind_a_pooler() {
        let found = option_settings("-csearch_path=a\\ b -c work_mem=4MB --x.y=1");
        let expected = [("search_path", "a b"), ("work_mem", "4MB"), ("x.y", "1")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, Ok(expected.to_vec()));
        assert!(option_settings("-d 3").is_err());
        let (url, own) = own_options("postgres://h/d?pooler=session&doorbell=off").unwrap();
        assert_eq!(url, "postgres://h/d");
        assert!(own.pooler && own.silent);
    }
}
