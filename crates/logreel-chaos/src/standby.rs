//! The primary loses power in the middle of work, and its synchronous standby is promoted: workers find it by
//! themselves, and nothing that was acknowledged is missing there.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;

use crate::clock::{self, millis, now, pause, wall_micros};
use crate::database::{Database, Server};
use crate::door::{Door, free_port};
use crate::evidence::Expected;
use crate::fleet::{Host, Worker};
use crate::judge::{Case, duration};
use crate::proxy::Proxy;
use crate::report::Report;
use crate::storm::{ended, url};
use crate::witness::Witness;
use crate::yard::Yard;
use crate::{Common, errand};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value = "2s", value_parser = duration)]
    lease: Duration,
    /// From two on: some must have ended when the primary dies, and others not.
    #[arg(long, default_value_t = 40)]
    runs: usize,
    /// For how long runs are started; the primary dies in the middle of it, on a busy machine later.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Do something wrong on purpose, to see that the judge names it.
    #[arg(long)]
    plant: Option<Plant>,
}

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// The primary does not wait for its standby: what it alone had is lost.
    Asynchronous,
}

/// How long the standby has got nothing when its primary dies: what is acknowledged meanwhile would be lost.
const BEHIND: Duration = millis(700);

pub fn run(common: &Common, args: &Args) -> Result<bool> {
    let yard = Yard::new(common, args.lease)?;
    let mut report = Report::default();
    lose_the_primary(&yard, args, &mut report)?;
    report.print();
    let is_well = report.is_well();
    yard.finish(is_well);
    Ok(is_well)
}

/// Two servers, of which the second has all that the first acknowledges.
fn two(yard: &Yard, plant: Option<Plant>) -> Result<(Database, Database)> {
    let primary = Server::make(&yard.path("primary"))?;
    primary.start()?;
    let standby = Server::standby_of(&primary, &yard.path("standby"))?;
    standby.start()?;
    let state = match plant {
        Some(Plant::Asynchronous) => "async",
        None => {
            // Only now, and only there: the standby has no standby of its own when it is promoted.
            primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")?;
            primary.ask("SELECT pg_reload_conf()")?;
            "sync"
        }
    };
    let follows =
        format!("pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'");
    clock::until("the standby follows", Duration::from_secs(20), || {
        Ok(primary.count(&follows)? == 1)
    })?;
    Ok((primary, standby))
}

/// What the primary has on its disk and the standby has not.
fn bytes_alone(primary: &Server, standby: &Server) -> Result<i64> {
    let got = standby.ask("SELECT pg_last_wal_receive_lsn()")?.concat();
    let alone = primary.ask(&format!(
        "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '{}')::int8",
        got.concat()
    ))?;
    Ok(alone.concat().concat().parse()?)
}

fn lose_the_primary(yard: &Yard, args: &Args, report: &mut Report) -> Result<()> {
    let chains = errand::write(yard)?;
    let (primary, standby) = two(yard, args.plant)?;
    let to_primary = Proxy::start(primary.socket())?;
    let to_standby = Proxy::start(standby.socket())?;
    // The standby is named first: whoever comes to it must find that it takes no writes.
    let store = format!(
        "{}&target_session_attrs=read-write",
        url(&[&to_standby, &to_primary])
    );
    let hosts = [Host::here(yard, "a")?, Host::apart(yard, "b")?];
    let mut workers: Vec<Worker> = [("w1", 0), ("w2", 0), ("w3", 1)]
        .iter()
        .map(|(name, host)| Worker::new(name, *host, store.clone(), 8))
        .collect();
    let port = free_port()?;
    workers.push(Worker::server("serve", 0, store.clone(), port));
    for worker in &mut workers {
        worker.start(yard, &hosts)?;
    }
    let (witness, door) = (Witness::default(), Door::Server(port));
    let calm = witness.start_calm(yard, port)?;
    clock::until("undisturbed runs end", Duration::from_secs(60), || {
        Ok(ended(&primary)? == calm)
    })?;
    let over = Duration::from_secs(args.seconds);
    let (mut before, mut witnessed) = (0, 0);
    let (mut alone, mut waiting) = (0, 0);
    let (mut took, mut reached, mut left) = (Duration::ZERO, 0, Vec::new());
    std::thread::scope(|scope| -> Result<()> {
        let starting = scope.spawn(|| witness.start_runs(yard, &door, args.runs, over));
        scope.spawn(|| witness.tell_runs(port));
        scope.spawn(|| {
            if let Err(error) = witness.follow_runs(yard, &store) {
                witness.seen().wrong.push(format!("a follower: {error:#}"));
            }
        });
        let begun = now();
        let disturbed = (|| -> Result<()> {
            clock::until("some runs end", Duration::from_secs(60), || {
                witness.look(&primary);
                pause(millis(80));
                before = ended(&primary)?.saturating_sub(calm);
                Ok(now() >= begun + over / 2 && before > 0)
            })?;
            let receiver = standby.stop_receiving()?;
            let behind_since = now();
            while now() - behind_since < BEHIND {
                witness.look(&primary);
                pause(millis(40));
            }
            witnessed = witness.seen().events.len();
            alone = bytes_alone(&primary, &standby)?;
            waiting = primary.count("pg_stat_activity WHERE wait_event = 'SyncRep'")?;
            let killed = now();
            primary.kill()?;
            receiver.give_up()?;
            standby.promote()?;
            took = now() - killed;
            let promoted = wall_micros();
            let all = args.runs + calm;
            clock::until("every run ends", Duration::from_secs(60), || {
                witness.look(&standby);
                for worker in &mut workers {
                    if let Some(ended) = worker.has_died()? {
                        left.push(format!("{}: {ended}", worker.life()));
                        worker.start(yard, &hosts)?;
                    }
                }
                Ok(ended(&standby)? == all)
            })?;
            // Whoever ended the runs: each of them is heard there.
            let heard = format!("owners WHERE NOT gone AND beat_at > {promoted}");
            clock::until("every worker is heard", 3 * args.lease, || {
                reached = standby.count(&heard)?;
                Ok(reached == workers.len())
            })
        })();
        witness.is_over.store(true, Ordering::SeqCst);
        match starting.join() {
            Ok(started) => started?,
            Err(_) => anyhow::bail!("whoever starts runs panicked"),
        }
        if let Err(error) = disturbed {
            println!("{error:#}");
        }
        Ok(())
    })?;
    report.check(
        "runs that had ended when the primary died",
        format!("{before} of {}", args.runs),
        (1..args.runs).contains(&before),
    );
    report.check(
        "events that were kept in mind by then",
        witnessed,
        witnessed > 0,
    );
    report.check(
        "bytes of its log that the standby had not got",
        alone,
        alone > 0,
    );
    report.check(
        "appends that waited for the standby when it died",
        waiting,
        waiting > 0,
    );
    report.tell("from its death to the promotion", format!("{took:.3?}"));
    report.check(
        "workers and servers that the promoted standby heard",
        format!("{reached} of {}", workers.len()),
        reached == workers.len(),
    );
    for worker in &mut workers {
        let ended = worker.drain()?;
        if ended.code() != Some(143) {
            left.push(format!("{} ended with {ended}", worker.life()));
        }
    }
    report.none("workers that left otherwise than they were told to", &left);
    let case = Case {
        yard,
        database: &standby,
        store: &store,
        seen: &witness.seen(),
        freezes: &[],
        chains: &chains,
        // How much is left to be taken up or settled when everyone lives on is chance.
        expected: Expected::default(),
    };
    case.judge(report)
}
