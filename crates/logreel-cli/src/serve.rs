//! `logreel serve`: the API and the page, and a worker for what they start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use logreel::ErrorKind;
use logreel::store::DutyKind;
use logreel_server::{Hosts, Server, Tokens, listen};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::detach::WorkerLock;
use crate::error::Failure;
use crate::output::Output;
use crate::served::Served;
use crate::signals::{Signals, Stop};
use crate::store::{Missing, Place};
use crate::{otlp, patience, retention, spec, token, worker};

const EXAMPLES: &str = "\
Examples:
  logreel serve --open                     the page, for this machine
  logreel serve --specs agents             what is in the folder can be started by name
  curl -s localhost:7717/v1/runs | jq      the API; /openapi.json describes it
  logreel token create --name ci && logreel serve --listen 0.0.0.0:7717
                                           for other machines, which need a token";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to listen; anywhere but on loopback callers need a token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7717", value_parser = parse_address)]
    listen: SocketAddr,
    /// A name, with its port, that callers may use for this server; repeat for more
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// The spec files in this folder can be started by name
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
    /// Take specs that come with a request: whoever may start runs may then run any program
    #[arg(long)]
    allow_inline: bool,
    /// Open the page in a browser
    #[arg(long)]
    open: bool,
    /// How many runs it drives at once; with 0 it takes none, and what it starts is left to workers
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=1000))]
    concurrency: u16,
    /// The folder to run in [default: as recorded with each run; one whose folder is not here is left alone]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// `7717` and `localhost:7717` are addresses too.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let local = text.strip_prefix("localhost:");
    let local = local.map(|port| format!("127.0.0.1:{port}"));
    local.as_deref().unwrap_or(text).parse().map_err(|_| {
        format!(
            "`{text}` is no address to listen on; such are 127.0.0.1:7717, 0.0.0.0:80, [::1]:7717"
        )
    })
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let specs = args.specs.as_deref().map(folder).transpose()?;
    let dir = args.dir.as_deref().map(spec::folder).transpose()?;
    let here = match &dir {
        Some(dir) => dir.clone(),
        None => spec::folder(std::path::Path::new("."))?,
    };
    let quiet = out.quiet;
    let acting = place
        .act_with(Missing::Make, out, |builder| {
            let builder = worker::in_folder(builder, dir.as_deref());
            worker::telling(builder, quiet).known_as(DutyKind::Serve)
        })
        .await?;
    let engine = acting.engine.clone();
    let kept = acting.kept.clone();
    let retention = acting.settings.retention.clone();
    let tokens = token::of(&kept);
    // Whoever names a host has a proxy before it: then a caller on loopback may be anyone.
    let trusts_callers = args.listen.ip().is_loopback() && args.host.is_empty();
    if !trusts_callers {
        check_tokens(tokens.as_ref(), args.listen).await?;
    }
    raise_open_files();
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        let message = format!("{} cannot be listened on: {error}", args.listen);
        Failure::new(ErrorKind::Unavailable, message).hint("--listen ADDRESS takes another")
    })?;
    let address = listener.local_addr().context("the socket has no address")?;
    let served = Served::new(acting, specs, here);
    let mut server = Server::new(&engine)
        .specs(Arc::new(served))
        .resource(otlp::resource())
        .hosts(Hosts::At(address));
    if let Some(tokens) = tokens {
        server = server.tokens(tokens, !trusts_callers);
    }
    if args.allow_inline {
        server = server.allow_inline();
    }
    for host in args.host {
        server = server.host(host);
    }
    let at_once = usize::from(args.concurrency);
    let lock = match at_once {
        0 => None,
        _ => WorkerLock::hold(&kept)?,
    };
    let url = format!("http://{address}/");
    out.note(match kept.is_memory() {
        false => format!("serving {} on {url}", kept.shown()),
        true => format!("serving runs in memory on {url}; they end with this process"),
    });
    if args.open {
        open(&url, out);
    }
    let (stop, told) = oneshot::channel::<()>();
    let until_stopped = async {
        // A sender that is gone says the same.
        told.await.unwrap_or_default();
    };
    let mut serving = std::pin::pin!(listen(&server, &engine, listener, until_stopped));
    let mut working = std::pin::pin!(async {
        match at_once {
            0 => engine.leave_to_workers().await,
            _ => engine.work(at_once).await?,
        }
        anyhow::Ok(())
    });
    let stopped = tokio::select! {
        // In this order: who is to leave what it starts to workers knows that before the first request.
        biased;
        // None of these ends by itself.
        worked = &mut working => {
            worked?;
            Stop::Terminate
        }
        () = &mut serving => Stop::Terminate,
        () = retention::keep(&engine, retention.as_ref(), out) => Stop::Terminate,
        stop = signals.next() => stop,
    };
    // From now on `--detach` must not count on this process.
    drop(lock);
    out.note("leaving; what is under way is handed back");
    drop(stop);
    let leave = async {
        let ((), closed) = tokio::join!(serving, patience::close(&engine));
        closed
    };
    tokio::select! {
        closed = leave => closed?,
        _ = signals.next() => {}
    }
    Ok(stopped.code())
}

/// Every client is an open file, and a shell's usual limit is 1024.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it was");
    }
}

/// Whoever can reach the address can start programs here: they must be known.
async fn check_tokens(tokens: Option<&Tokens>, address: SocketAddr) -> anyhow::Result<()> {
    let known = match tokens {
        Some(tokens) => tokens.list().await?,
        None => Vec::new(),
    };
    if !known.is_empty() {
        return Ok(());
    }
    let message = format!("{address} can be reached from elsewhere, and nobody has a token");
    Err(Failure::new(ErrorKind::Forbidden, message)
        .hint("`logreel token create --name WHO` makes one; or listen on 127.0.0.1, without --host")
        .into())
}

fn folder(said: &std::path::Path) -> Result<PathBuf, Failure> {
    let is_folder = |path: &PathBuf| path.is_dir();
    said.canonicalize().ok().filter(is_folder).ok_or_else(|| {
        let message = format!("--specs {} is not a folder", said.display());
        Failure::new(ErrorKind::Usage, message)
    })
}

fn open(url: &str, out: &Output) {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let opened = Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opened {
        out.note(format!(
            "no browser was opened ({program}: {error}); open {url}"
        ));
    }
}
