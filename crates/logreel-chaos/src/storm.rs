//! Minutes of weather: workers killed and frozen, the database crashing, connections cut; while runs are started and
//! followed. In the end all of them are judged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::clock::{self, millis, now, pause};
use crate::database::{Database, Server};
use crate::dice::Dice;
use crate::door::{Door, free_port};
use crate::errand::STEP_TIMEOUT;
use crate::evidence::Expected;
use crate::fleet::{Freeze, Host, UNAVAILABLE, Worker};
use crate::judge::duration;
use crate::proxy::{Proxy, Trap};
use crate::report::Report;
use crate::witness::Witness;
use crate::yard::Yard;
use crate::{Common, errand, judge};

/// Those who follow runs, one each.
const FOLLOWERS: usize = 2;
/// How wrong the dates of two of the workers are.
const SKEW_SECONDS: i64 = 420;

#[derive(clap::Args)]
pub struct Args {
    /// The small one, for every change: 80 runs, about a minute in all.
    #[arg(long)]
    short: bool,
    /// How many runs, of 20 steps each.
    #[arg(long, default_value_t = 500)]
    runs: usize,
    /// For how long faults come.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    #[arg(long, default_value = "2s", value_parser = duration)]
    lease: Duration,
    /// Runs that a worker drives at once.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Workers that are killed.
    #[arg(long, default_value_t = 30)]
    kills: usize,
    /// Workers that are frozen for a while.
    #[arg(long, default_value_t = 22)]
    freezes: usize,
    /// Crashes of the database.
    #[arg(long, default_value_t = 9)]
    crashes: usize,
    /// How often connections are cut, in each way.
    #[arg(long, default_value_t = 12)]
    cuts: usize,
    /// Do something wrong on purpose, to see that the judge names it.
    #[arg(long)]
    plant: Option<Plant>,
}

#[derive(Debug, Clone, Copy)]
enum Deed {
    Kill,
    Freeze,
    Crash,
    /// All connections of someone at once.
    Cut,
    Spring(Trap),
    /// Nothing reaches the database from one worker, for longer than its lease.
    Close,
    /// Connections stay and nothing arrives.
    Hold,
}

/// A deed, and when it is due. It has dice of its own: what they give depends on the seed alone, and not on what was
/// done before it, and when.
struct Planned {
    at: Duration,
    deed: Deed,
    dice: Dice,
}

/// What follows from a deed.
enum Sequel {
    Start(usize),
    Thaw(usize),
}

/// What was done.
#[derive(Debug, Default)]
struct Done {
    kills: usize,
    freezes: usize,
    /// Of both, those that met the server.
    of_server: usize,
    crashes: usize,
    /// Times that all connections of someone were cut, and how many these were.
    cuts: usize,
    lines: usize,
    closes: usize,
    holds: usize,
    /// Workers that could not begin, because the database was away.
    refused: usize,
    wrong: Vec<String>,
}

pub fn run(common: &Common, args: &Args) -> Result<bool> {
    let mut settings = Settings {
        runs: args.runs,
        seconds: args.seconds,
        kills: args.kills,
        freezes: args.freezes,
        crashes: args.crashes,
        cuts: args.cuts,
        rare: 3,
        is_long: true,
    };
    if args.short {
        settings = Settings {
            runs: 80,
            seconds: 28,
            kills: 7,
            freezes: 4,
            crashes: 2,
            cuts: 3,
            rare: 1,
            is_long: false,
        };
    }
    let mut yard = Yard::new(common, args.lease)?;
    yard.plant = args.plant;
    let report = Storm::new(&yard, args.concurrency)?.blow(&settings)?;
    report.print();
    println!("seed {}", yard.seed);
    let is_well = report.is_well();
    yard.finish(is_well);
    Ok(is_well)
}

struct Settings {
    runs: usize,
    seconds: u64,
    kills: usize,
    freezes: usize,
    crashes: usize,
    cuts: usize,
    /// Times that a worker is cut off, and times that its messages are held.
    rare: usize,
    /// Whether most runs must end while faults go on, and other hosts and wrong dates must be there: neither a busy
    /// machine nor one without them is a fault of what changed.
    is_long: bool,
}

impl Settings {
    /// How many workers must be killed or frozen: every fourth time it is the server, and one that is down already
    /// cannot be.
    fn least_disturbed(&self) -> usize {
        (self.kills + self.freezes) * 3 / 5
    }

    /// Crashes that must come: a recovery may take until after the last.
    fn least_crashes(&self) -> usize {
        self.crashes - self.crashes / 8
    }

    /// What the judge must see: in a short one not everything that may be seen surely is.
    fn expected(&self) -> Expected {
        let in_long = usize::from(self.is_long);
        Expected {
            kept: 1,
            heard: in_long,
            taken_up: in_long,
            settled: in_long,
            questions: in_long,
            repeats_most: 2,
        }
    }
}

struct Storm<'y> {
    yard: &'y Yard,
    // In this order they are dropped: workers, hosts, then what they need.
    workers: Vec<Worker>,
    hosts: Vec<Host>,
    proxies: Vec<Proxy>,
    /// The way to the database of those who follow runs.
    outside: Proxy,
    database: Database,
    skewed: bool,
    /// Where the server answers.
    port: u16,
    /// What follows from what was done, and when.
    sequels: Vec<(Duration, Sequel)>,
    /// What nobody would have felt when it was due: the database was away, or they stood still.
    postponed: Vec<Planned>,
}

/// Where `logreel` finds a database behind a proxy.
pub fn url(proxies: &[&Proxy]) -> String {
    let hosts: Vec<String> = proxies
        .iter()
        .map(|proxy| format!("127.0.0.1:{}", proxy.port))
        .collect();
    format!(
        "postgres://postgres@{}/postgres?sslmode=disable",
        hosts.join(",")
    )
}

impl<'y> Storm<'y> {
    fn new(yard: &'y Yard, at_once: usize) -> Result<Self> {
        let database = Server::make(&yard.path("pg"))?;
        database.start()?;
        let hosts = vec![Host::here(yard, "a")?, Host::apart(yard, "b")?];
        let (mut proxies, mut workers, mut skewed) = (Vec::new(), Vec::new(), true);
        // Two of them share a host, the third is alone on its own.
        for (name, host, skew) in [
            ("w1", 0, 0),
            ("w2", 0, SKEW_SECONDS),
            ("w3", 1, -SKEW_SECONDS),
        ] {
            let proxy = Proxy::start(database.socket())?;
            let mut worker = Worker::new(name, host, url(&[&proxy]), at_once);
            skewed &= skew == 0 || worker.skew(skew);
            workers.push(worker);
            proxies.push(proxy);
        }
        // And a server, which drives too, and through which runs are started.
        let (proxy, port) = (Proxy::start(database.socket())?, free_port()?);
        workers.push(Worker::server("serve", 0, url(&[&proxy]), port));
        proxies.push(proxy);
        Ok(Self {
            yard,
            workers,
            hosts,
            proxies,
            outside: Proxy::start(database.socket())?,
            port,
            database,
            skewed,
            sequels: Vec::new(),
            postponed: Vec::new(),
        })
    }

    fn blow(mut self, settings: &Settings) -> Result<Report> {
        let chains = errand::write(self.yard)?;
        let (witness, store) = (Witness::default(), url(&[&self.outside]));
        // All at once on an empty database.
        for worker in &mut self.workers {
            worker.start(self.yard, &self.hosts)?;
        }
        let (port, door) = (self.port, Door::Server(self.port));
        let calm = witness.start_calm(self.yard, port)?;
        let has_ended = || {
            pause(millis(200));
            Ok(ended(&self.database)? == calm)
        };
        clock::until("undisturbed runs end", Duration::from_secs(60), has_ended)?;

        let begun = now();
        let faults = Duration::from_secs(settings.seconds);
        let (yard, seen) = (self.yard, &witness);
        let mut report = Report::default();
        let over = faults.mul_f64(0.85);
        let database = self.database.clone();
        let done = std::thread::scope(|scope| -> Result<Done> {
            let starting = scope.spawn(|| seen.start_runs(yard, &door, settings.runs, over));
            for _ in 0..FOLLOWERS {
                scope.spawn(|| {
                    if let Err(error) = seen.follow_runs(yard, &store) {
                        seen.seen().wrong.push(format!("a follower: {error:#}"));
                    }
                });
            }
            scope.spawn(|| seen.tell_runs(port));
            scope.spawn(|| seen.help_runs(&database, port));
            scope.spawn(|| seen.keep_looking(&database));
            let mut done = Done::default();
            let all = settings.runs + calm;
            let weathered = self.weather((settings, all), begun, &mut done, &mut report);
            // Whoever starts runs needs a server, and one that found no database when it began has left.
            let mut looked_after = Ok(());
            while looked_after.is_ok() && !starting.is_finished() {
                looked_after = self
                    .follow_up(now())
                    .and_then(|()| self.keep_alive(&mut done));
                pause(millis(20));
            }
            let started = match starting.join() {
                Ok(started) => started,
                Err(_) => Err(anyhow::anyhow!("whoever starts runs panicked")),
            };
            let ends = clock::until("every run ends", Duration::from_secs(90), || {
                self.follow_up(now())?;
                self.keep_alive(&mut done)?;
                // Each look is a process: the runs need the machine more.
                pause(millis(200));
                Ok(ended(&database).unwrap_or(0) == all)
            });
            if let Err(error) = ends {
                println!("{error:#}");
            }
            witness.is_over.store(true, Ordering::SeqCst);
            weathered?;
            looked_after?;
            started.map(|()| done)
        })?;
        report.tell("all runs had ended after", format!("{:.1?}", now() - begun));
        let freezes = self.leave(&mut report, settings, &done)?;
        judge::Case {
            yard: self.yard,
            database: &self.database,
            store: &store,
            seen: &witness.seen(),
            freezes: &freezes,
            chains: &chains,
            expected: settings.expected(),
        }
        .judge(&mut report)?;
        Ok(report)
    }

    /// When what is done.
    fn plan(&self, settings: &Settings, faults: Duration) -> Vec<Planned> {
        let mut dice = Dice::new(self.yard.seed);
        let deeds = [
            (Deed::Kill, settings.kills),
            (Deed::Freeze, settings.freezes),
            (Deed::Crash, settings.crashes),
            (Deed::Cut, settings.cuts),
            (Deed::Close, settings.rare),
            (Deed::Hold, settings.rare),
        ];
        let traps = Trap::ALL.map(|trap| (Deed::Spring(trap), settings.cuts));
        let mut plan = Vec::new();
        for (deed, times) in deeds.into_iter().chain(traps) {
            // One in each share of the time: at random, and never all at the end.
            let faults = match deed {
                // These may have to be postponed, and the rest of the time must do for that.
                Deed::Cut | Deed::Close | Deed::Hold => {
                    faults.mul_f64(if settings.is_long { 0.8 } else { 0.5 })
                }
                // The last one is done late where the machine is slow, and must still come.
                _ => faults.mul_f64(0.95),
            };
            for n in 0..times {
                let share = faults.div_f64(f64::from(u32::try_from(times).unwrap_or(1)));
                let from = share * u32::try_from(n).unwrap_or(0);
                plan.push(Planned {
                    at: dice.between(from, from + share),
                    deed,
                    dice: Dice::new(dice.draw()),
                });
            }
        }
        plan.sort_by_key(|planned| planned.at);
        plan
    }

    fn weather(
        &mut self,
        (settings, all): (&Settings, usize),
        begun: Duration,
        done: &mut Done,
        report: &mut Report,
    ) -> Result<()> {
        let faults = Duration::from_secs(settings.seconds);
        let mut plan = self.plan(settings, faults).into_iter().peekable();
        let (database, crashing) = (self.database.clone(), AtomicBool::new(false));
        let crashed = std::sync::Mutex::new(Vec::new());
        let mut owed = VecDeque::new();
        let in_time = std::thread::scope(|scope| -> Result<Option<usize>> {
            while now() < begun + faults {
                let at = now();
                self.follow_up(at)?;
                let postponed = std::mem::take(&mut self.postponed);
                let due = std::iter::from_fn(|| plan.next_if(|planned| begun + planned.at <= at));
                for planned in postponed.into_iter().chain(due) {
                    match planned.deed {
                        Deed::Crash => owed.push_back(planned.dice),
                        _ => {
                            let sequel = self.disturb(planned, done)?;
                            self.sequels.extend(sequel);
                        }
                    }
                }
                // One that is still recovering crashes later.
                if !crashing.load(Ordering::SeqCst)
                    && let Some(mut dice) = owed.pop_front()
                {
                    crashing.store(true, Ordering::SeqCst);
                    done.crashes += 1;
                    // Every other time it is away for longer than a lease.
                    let away = match done.crashes % 2 {
                        0 => dice.between(self.yard.lease, 2 * self.yard.lease),
                        _ => Duration::ZERO,
                    };
                    let (database, crashed, crashing) = (&database, &crashed, &crashing);
                    scope.spawn(move || {
                        if let Err(error) = database.crash_and_start(away) {
                            let told = format!("the database: {error:#}");
                            crashed.lock().expect("nobody panics").push(told);
                        }
                        crashing.store(false, Ordering::SeqCst);
                    });
                }
                self.keep_alive(done)?;
                pause(millis(10));
            }
            // Before whoever starts the database again is waited for.
            Ok(ended(&self.database).ok())
        })?;
        done.wrong
            .append(&mut crashed.lock().expect("nobody panics"));
        let meanwhile = match in_time {
            Some(many) => many,
            // It was away, and until it is back nothing ends.
            None => ended(&self.database)?,
        };
        self.follow_up(Duration::MAX)?;
        for proxy in self.proxies.iter().chain([&self.outside]) {
            proxy.calm();
        }
        let (what, figure) = (
            "runs that ended while faults went on",
            format!("{meanwhile} of {all}"),
        );
        match settings.is_long {
            true => report.check(what, figure, 2 * meanwhile > all),
            false => report.tell(what, figure),
        }
        Ok(())
    }

    /// What was to follow until then.
    fn follow_up(&mut self, until: Duration) -> Result<()> {
        let due = self.sequels.extract_if(.., |(due, _)| *due <= until);
        for (_, sequel) in due.collect::<Vec<_>>() {
            let (Sequel::Start(index) | Sequel::Thaw(index)) = sequel;
            let worker = self.workers.get_mut(index).context("no such worker")?;
            match sequel {
                Sequel::Start(_) if worker.is_alive() => {}
                Sequel::Start(_) => worker.start(self.yard, &self.hosts)?,
                Sequel::Thaw(_) => worker.thaw()?,
            }
        }
        Ok(())
    }

    fn disturb(&mut self, planned: Planned, done: &mut Done) -> Result<Option<(Duration, Sequel)>> {
        let (at, lease, mut dice) = (now(), self.yard.lease, planned.dice.clone());
        match planned.deed {
            Deed::Kill => {
                let Some(index) = self.victim(&mut dice, done, Worker::is_alive) else {
                    return Ok(None);
                };
                let worker = self.workers.get_mut(index).context("no such worker")?;
                worker.kill()?;
                done.kills += 1;
                done.of_server += usize::from(worker.is_server());
                let back = dice.between(Duration::ZERO, millis(1500));
                Ok(Some((at + back, Sequel::Start(index))))
            }
            Deed::Freeze => {
                // One of them goes on.
                let several = self.workers.iter().filter(|it| is_awake(it)).count() > 1;
                let index = self.victim(&mut dice, done, is_awake);
                let Some(index) = index.filter(|_| several) else {
                    return Ok(None);
                };
                let (least, most) = match dice.below(4) {
                    // A hiccup; longer than the lease; longer than whoever takes over waits for a write.
                    0 => (millis(200), lease / 2),
                    1 | 2 => (lease, 2 * lease + millis(1000)),
                    _ => {
                        let all = 2 * lease + STEP_TIMEOUT;
                        (all + millis(1000), all + millis(3000))
                    }
                };
                let worker = self.workers.get_mut(index).context("no such worker")?;
                worker.freeze()?;
                done.freezes += 1;
                done.of_server += usize::from(worker.is_server());
                let long = dice.between(least, most);
                Ok(Some((at + long, Sequel::Thaw(index))))
            }
            Deed::Cut => {
                match self.used_proxy(&mut dice).map_or(0, Proxy::cut) {
                    0 => self.postponed.push(planned),
                    lines => {
                        done.cuts += 1;
                        done.lines += lines;
                    }
                }
                Ok(None)
            }
            Deed::Spring(trap) => {
                self.some_proxy(&mut dice).set_trap(trap);
                Ok(None)
            }
            Deed::Close => {
                match self.proxy_of_some_worker(&mut dice) {
                    Some(proxy) => {
                        proxy.close(at + dice.between(lease, 3 * lease));
                        done.closes += 1;
                    }
                    None => self.postponed.push(planned),
                }
                Ok(None)
            }
            Deed::Hold => {
                match self.proxy_of_some_worker(&mut dice) {
                    Some(proxy) => {
                        proxy.hold(at + dice.between(lease / 2, 3 * lease));
                        done.holds += 1;
                    }
                    None => self.postponed.push(planned),
                }
                Ok(None)
            }
            // Done beside everything else.
            Deed::Crash => Ok(None),
        }
    }

    /// One of the workers; every fourth time the server, which drives too.
    fn victim(
        &self,
        dice: &mut Dice,
        done: &Done,
        fits: impl Fn(&Worker) -> bool,
    ) -> Option<usize> {
        let server = (done.kills + done.freezes) % 4 == 3;
        let fit = self.workers.iter().enumerate();
        let fit = fit.filter(|(_, it)| it.is_server() == server && fits(it));
        dice.choose(fit.map(|(index, _)| index).collect())
    }

    /// That of a worker which has connections now and is awake, and so feels it.
    fn proxy_of_some_worker(&self, dice: &mut Dice) -> Option<&Proxy> {
        let each = self.workers.iter().zip(&self.proxies);
        let feel = each.filter(|(it, proxy)| !it.is_server() && is_awake(it) && proxy.is_used());
        dice.choose(feel.map(|(_, proxy)| proxy).collect())
    }

    /// One that someone is connected by.
    fn used_proxy(&self, dice: &mut Dice) -> Option<&Proxy> {
        let all = self.proxies.iter().chain([&self.outside]);
        dice.choose(all.filter(|proxy| proxy.is_used()).collect())
    }

    /// A worker's, mostly; sometimes that of those outside.
    fn some_proxy(&self, dice: &mut Dice) -> &Proxy {
        let index = dice.below(self.proxies.len() + 1);
        self.proxies.get(index).unwrap_or(&self.outside)
    }

    /// As a supervisor does: whoever left by itself is started again, soon. Only a database that is away when it starts
    /// is a reason to leave, and then that is what it says.
    fn keep_alive(&mut self, done: &mut Done) -> Result<()> {
        for (index, worker) in self.workers.iter_mut().enumerate() {
            if let Some(ended) = worker.has_died()? {
                let is_refused = ended.code() == Some(UNAVAILABLE)
                    && !worker.was_ready(self.yard)?
                    && worker.found_no_database(self.yard)?;
                match is_refused {
                    true => done.refused += 1,
                    false => done.wrong.push(format!("{} left: {ended}", worker.life())),
                }
                self.sequels
                    .push((now() + millis(700), Sequel::Start(index)));
            }
        }
        Ok(())
    }

    /// The workers leave as on a quiet day, and nothing of them is left.
    fn leave(
        &mut self,
        report: &mut Report,
        settings: &Settings,
        done: &Done,
    ) -> Result<Vec<Freeze>> {
        let mut freezes = Vec::new();
        let mut wrong = done.wrong.clone();
        for worker in &mut self.workers {
            freezes.append(&mut worker.freezes);
            if worker.is_alive() {
                // One that begins just now does not hear yet that it is to leave.
                let is_ready = || worker.was_ready(self.yard);
                let patience = Duration::from_secs(30);
                if let Err(error) = clock::until("it is ready", patience, is_ready) {
                    wrong.push(format!("{}: {error:#}", worker.life()));
                }
                let ended = worker.drain()?;
                if ended.code() != Some(143) {
                    wrong.push(format!("{} ended with {ended}", worker.life()));
                }
            }
        }
        self.tell_weather(report, settings, done);
        report.none("what workers and database should not have done", &wrong);
        let mut left = Vec::new();
        let gone = clock::until("no process is left", Duration::from_secs(5), || {
            left = self.yard.alive()?;
            Ok(left.is_empty())
        });
        drop(gone);
        report.none("processes left behind", &left);
        Ok(freezes)
    }
}

impl Storm<'_> {
    /// What was done; a storm in which too little was shows nothing.
    fn tell_weather(&self, report: &mut Report, settings: &Settings, done: &Done) {
        let sprung = Trap::ALL.map(|trap| -> usize {
            let proxies = self.proxies.iter().chain([&self.outside]);
            proxies.map(|proxy| proxy.sprung(trap)).sum()
        });
        report.least(
            &format!(
                "workers killed and frozen (beside them the server {} times; {} kills, {} freezes in all)",
                done.of_server, done.kills, done.freezes
            ),
            done.kills + done.freezes - done.of_server,
            settings.least_disturbed(),
        );
        report.least(
            "crashes of the database",
            done.crashes,
            settings.least_crashes(),
        );
        report.least(
            "times that someone lost all connections at once",
            done.cuts,
            settings.cuts,
        );
        report.tell("  connections cut by that", done.lines);
        report.least(
            "connections cut in a message or before an answer",
            sprung.iter().sum(),
            settings.cuts,
        );
        for (trap, many) in Trap::ALL.iter().zip(sprung) {
            // There are not many COMMITs in a short one.
            let floor = usize::from(settings.is_long);
            report.least(&format!("  of them {}", trap.name()), many, floor);
        }
        report.least(
            "workers cut off longer than a lease",
            done.closes,
            settings.rare,
        );
        report.least(
            "times that a worker's messages were held",
            done.holds,
            settings.rare,
        );
        report.tell("starts of workers that found no database", done.refused);
        let dates = match self.skewed {
            true => format!("0, +{SKEW_SECONDS} s, -{SKEW_SECONDS} s"),
            false => "all right: libfaketime is not installed".to_owned(),
        };
        let hosts = 1 + self.hosts.iter().filter(|host| host.is_apart()).count();
        if settings.is_long {
            report.check("dates of the workers", dates, self.skewed);
            report.check("hosts", hosts, hosts > 1);
        } else {
            report.tell("dates of the workers", dates);
            report.tell("hosts", hosts);
        }
    }
}

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// Whoever asks about a write hears that it was surely not done: those that were are done twice.
    RepeatedWrite,
}

/// Whether it is there and at work.
fn is_awake(worker: &Worker) -> bool {
    worker.is_alive() && !worker.is_frozen()
}

pub fn ended(database: &Server) -> Result<usize> {
    database.count("runs WHERE parent IS NULL AND status IN ('completed', 'failed', 'cancelled')")
}
