//! Several hosts: which of them is asked first, and for how long. The client itself would ask them in the order of
//! the URL every time, and one that is silent could take all of the time that there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

/// The hosts of a URL.
#[derive(Clone)]
pub(super) struct Hosts {
    /// One for each, in the order of the URL.
    configs: Arc<[Config]>,
    /// Which one answered last.
    last: Arc<AtomicUsize>,
    /// How long one may take before the next is asked.
    each: Duration,
}

impl Hosts {
    pub fn new(config: Config, each: Duration) -> Self {
        Self {
            configs: apart(config).into(),
            last: Arc::default(),
            each,
        }
    }

    /// The same hosts, for whoever has so little time that all of them must be asked within it.
    pub fn within(&self, longest: Duration) -> Self {
        let each = self.each.min(longest / (self.many() + 1));
        let configs = self.configs.iter().cloned().map(|mut config| {
            // A name may have several addresses, too.
            config.connect_timeout(each);
            config
        });
        Self {
            configs: configs.collect(),
            last: self.last.clone(),
            each,
        }
    }

    pub fn many(&self) -> u32 {
        u32::try_from(self.configs.len()).unwrap_or(u32::MAX)
    }

    /// How long all but the last may take together.
    pub fn longest(&self) -> Duration {
        self.each * self.many().saturating_sub(1)
    }

    /// What every connection to any of them says.
    pub fn config(&self) -> Config {
        self.configs.first().cloned().unwrap_or_default()
    }

    /// A connection to the host that answered last, else to another that answers. The last that is asked has
    /// whatever time its caller has left.
    pub async fn connect<T>(&self, tls: T) -> Result<(Client, Connection<Socket, T::Stream>), Error>
    where
        T: MakeTlsConnect<Socket> + Clone,
    {
        let first = self.last.load(Ordering::Relaxed);
        let others = (0..self.configs.len()).filter(|index| *index != first);
        let mut order: Vec<usize> = std::iter::once(first).chain(others).collect();
        let last = order.pop().unwrap_or(first);
        for index in order {
            let asked = self.configs[index].connect(tls.clone());
            match tokio::time::timeout(self.each, asked).await {
                Ok(Ok(connected)) => {
                    self.last.store(index, Ordering::Relaxed);
                    return Ok(connected);
                }
                Ok(Err(error)) => tracing::debug!("a host of the database is left out: {error}"),
                Err(_) => tracing::debug!("a host of the database did not answer in time"),
            }
        }
        let connected = self.configs[last].connect(tls).await?;
        self.last.store(last, Ordering::Relaxed);
        Ok(connected)
    }
}

/// One for each host. What does not fit together is left as it is: the client says what is wrong with it.
fn apart(config: Config) -> Vec<Config> {
    let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    let (many, ports) = (hosts.max(addresses), config.get_ports().len());
    let fits = (hosts == addresses || hosts.min(addresses) == 0) && (ports <= 1 || ports == many);
    match fits && many > 1 {
        true => (0..many).map(|index| alone(&config, index)).collect(),
        false => vec![config],
    }
}

/// The same with one of its hosts alone.
fn alone(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match config.get_hosts().get(index) {
        Some(Host::Tcp(host)) => {
            one.host(host);
        }
        Some(Host::Unix(folder)) => {
            one.host_path(folder);
        }
        None => {}
    }
    if let Some(address) = config.get_hostaddrs().get(index) {
        one.hostaddr(*address);
    }
    let ports = config.get_ports();
    if let Some(port) = ports.get(index).or_else(|| ports.first()) {
        one.port(*port);
    }
    if let Some(user) = config.get_user() {
        one.user(user);
    }
    if let Some(password) = config.get_password() {
        one.password(password);
    }
    if let Some(database) = config.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = config.get_options() {
        one.options(options);
    }
    if let Some(name) = config.get_application_name() {
        one.application_name(name);
    }
    if let Some(timeout) = config.get_connect_timeout() {
        one.connect_timeout(*timeout);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        one.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_all_that_the_url_says() {
        let url = "postgres://me:secret@a:1,b:2/data?sslmode=require&connect_timeout=3&keepalives_idle=7\
            &application_name=x&options=-cgeqo%3Doff&target_session_attrs=read-write\
            &channel_binding=require&tcp_user_timeout=9&keepalives_interval=4&keepalives_retries=5";
        let whole: Config = url.parse().unwrap();
        let found = apart(whole);
        for (index, one) in found.iter().enumerate() {
            let expected = url.replace("a:1,b:2", ["a:1", "b:2"][index]);
            assert_eq!(*one, expected.parse::<Config>().unwrap());
        }
        assert_eq!(found.len(), 2);
        let wrong = "postgres://a,b,c/data?port=1,2";
        let wrong: Config = wrong.parse().unwrap();
        assert_eq!(apart(wrong.clone()), [wrong]);
    }
}
