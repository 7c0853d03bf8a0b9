use std::fmt;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use super::KafkaSource;
use super::client;
use super::settings::{Settings, StartPolicy};
use crate::ledger::{Config, ConfigError};

/// Half of the group's poll interval is the most, 5 s the default.
const REVOKE_BUDGET: Duration = Duration::from_secs(5);

/// What the source sets unless the user does.
const DEFAULTS: [(&str, &str); 7] = [
    ("auto.offset.reset", "earliest"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("queued.min.messages", "1000"),
    ("queued.max.messages.kbytes", "1024"),
    ("fetch.queue.backoff.ms", "5"),
    ("fetch.wait.max.ms", "100"),
];

/// Builds a [`KafkaSource`]: see [`KafkaSource::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct KafkaSourceBuilder {
    client: ClientConfig,
    topics: Vec<String>,
    config: Config,
    revoke_budget: Option<Duration>,
}

/// Why a [`KafkaSource`] could not be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no `group.id`, or an empty one.
    #[error(
        "group.id is missing: commits belong to a group; name one in KafkaSource::builder, or set \"group.id\""
    )]
    NoGroup,
    /// There is no `bootstrap.servers`.
    #[error(
        "bootstrap.servers is missing: name one in KafkaSource::builder, or set \"bootstrap.servers\""
    )]
    NoBootstrap,
    /// There is nothing to subscribe to.
    #[error("nothing to subscribe to: name topics with .topics([..]) or .pattern(..)")]
    NoTopics,
    /// A topic's name is empty.
    #[error("a topic's name is empty")]
    EmptyTopic,
    /// The setting would commit messages that are not finished.
    #[error(
        "{0}=true would commit messages that are not finished: leave it out, the source commits the watermark by itself"
    )]
    AutoCommit(&'static str),
    /// A bound lets nothing through.
    #[error(transparent)]
    Bounds(#[from] ConfigError),
    /// The budget is longer than the group allows.
    #[error(
        "a revoke budget of {budget:?} is more than half of max.poll.interval.ms ({interval:?}): the group would give the partitions away meanwhile; lower the budget to at most {most:?} or raise max.poll.interval.ms"
    )]
    RevokeBudget {
        /// The budget asked for.
        budget: Duration,
        /// `max.poll.interval.ms` as it is in force.
        interval: Duration,
        /// The longest budget allowed.
        most: Duration,
    },
    /// librdkafka refused a setting.
    #[error("the Kafka client refused \"{key}\" = \"{value}\": {reason}")]
    Setting {
        /// The setting.
        key: String,
        /// Its value; hidden if it is a password or a key.
        value: String,
        /// What the client said.
        reason: String,
    },
    /// librdkafka could not be started with these settings.
    #[error("the Kafka client could not be made: {0}")]
    Client(String),
}

/// Stands in errors for what nobody is to read.
const HIDDEN: &str = "[hidden]";

/// Whether the value of this setting belongs in no log.
fn is_secret(key: &str) -> bool {
    [
        "password",
        "passphrase",
        "secret",
        "key.pem",
        "oauthbearer.config",
    ]
    .iter()
    .any(|part| key.contains(part))
}

impl fmt::Debug for BuildError {
    /// The sentence: what a `main` that answers the error prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The client tells to recompile it: with which feature of ours.
fn name_feature(reason: String) -> String {
    if reason.contains("OpenSSL not available") || reason.contains("libsasl2 or openssl") {
        format!("{reason}; enable the feature `ssl` or `ssl-vendored` of tower-consumer")
    } else {
        reason
    }
}

impl From<KafkaError> for BuildError {
    fn from(error: KafkaError) -> Self {
        match error {
            KafkaError::ClientConfig(_, reason, key, value) if is_secret(&key) => {
                let reason = match &*value {
                    "" => reason,
                    secret => reason.replace(secret, HIDDEN),
                };
                let value = HIDDEN.to_owned();
                BuildError::Setting { key, value, reason }
            }
            KafkaError::ClientConfig(_, reason, key, value) => {
                let reason = name_feature(reason);
                BuildError::Setting { key, value, reason }
            }
            KafkaError::ClientCreation(reason) => BuildError::Client(name_feature(reason)),
            error => BuildError::Client(name_feature(error.to_string())),
        }
    }
}

impl KafkaSourceBuilder {
    pub(super) fn new(client: ClientConfig) -> Self {
        KafkaSourceBuilder {
            client,
            topics: Vec::new(),
            config: Config::default(),
            revoke_budget: None,
        }
    }

    /// Subscribes to these topics, besides those named before.
    pub fn topics<T: Into<String>>(mut self, topics: impl IntoIterator<Item = T>) -> Self {
        self.topics.extend(topics.into_iter().map(Into::into));
        self
    }

    /// Subscribes to all topics whose name matches this regular expression of librdkafka (POSIX extended) from its
    /// beginning on: a leading `^` is added if it is missing; end with `$` to match the whole name. Topics made later are found when the client refreshes its metadata
    /// (`topic.metadata.refresh.interval.ms`).
    pub fn pattern(mut self, pattern: impl Into<String>) -> Self {
        let pattern = pattern.into();
        self.topics.push(match pattern.starts_with('^') {
            true => pattern,
            false => format!("^{pattern}"),
        });
        self
    }

    /// Sets any property of librdkafka. What would break a promise is refused by [`build`](Self::build).
    pub fn set(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.client.set(key.into(), value.into());
        self
    }

    crate::source::bounds::setters!();

    /// The most that giving up partitions in a rebalance may take: the wait for what runs and the last commit. By
    /// default 5 s, or half of `max.poll.interval.ms` if that is shorter; more than that half is refused. Four fifths of it
    /// are for what runs: a handler that takes longer than 4 s is cut off by a rebalance and delivered again, unless you
    /// raise this.
    pub fn revoke_budget(mut self, budget: Duration) -> Self {
        self.revoke_budget = Some(budget);
        self
    }

    /// Makes the client, subscribes, and starts the threads. Does not wait for a broker: one that cannot be reached, and a
    /// topic that does not exist, are waited for without limit, and said through `tracing` at doubling intervals.
    ///
    /// # Errors
    /// What would break a promise, and whatever librdkafka refuses.
    pub fn build(mut self) -> Result<KafkaSource, BuildError> {
        self.config.validate()?;
        let is_set =
            |client: &ClientConfig, key| client.get(key).is_some_and(|value| !value.is_empty());
        if !is_set(&self.client, "group.id") {
            return Err(BuildError::NoGroup);
        }
        if !is_set(&self.client, "bootstrap.servers")
            && !is_set(&self.client, "metadata.broker.list")
        {
            return Err(BuildError::NoBootstrap);
        }
        if self.topics.is_empty() {
            return Err(BuildError::NoTopics);
        }
        if self
            .topics
            .iter()
            .any(|topic| topic.is_empty() || topic == "^")
        {
            return Err(BuildError::EmptyTopic);
        }
        for (key, value) in DEFAULTS {
            if self.client.get(key).is_none() {
                self.client.set(key, value);
            }
        }
        // as librdkafka understands them, aliases and defaults included
        let native = self.client.create_native_config()?;
        for key in ["enable.auto.commit", "enable.auto.offset.store"] {
            if native.get(key)? != "false" {
                return Err(BuildError::AutoCommit(key));
            }
        }
        let interval = native
            .get("max.poll.interval.ms")?
            .parse()
            .unwrap_or(300_000);
        let interval = Duration::from_millis(interval);
        let most = interval / 2;
        let revoke_budget = self.revoke_budget.unwrap_or(REVOKE_BUDGET.min(most));
        if revoke_budget > most {
            return Err(BuildError::RevokeBudget {
                budget: revoke_budget,
                interval,
                most,
            });
        }
        // the client reads values in upper and lower case
        let reset = self.client.get("auto.offset.reset").unwrap_or_default();
        let start = match &*reset.to_ascii_lowercase() {
            "latest" | "largest" | "end" => StartPolicy::PinLatest,
            _ => StartPolicy::Client,
        };
        let settings = Settings {
            revoke_budget,
            start,
        };
        Ok(client::start(
            &self.client,
            &self.topics,
            self.config,
            settings,
        )?)
    }
}

impl fmt::Debug for KafkaSourceBuilder {
    /// Settings may hold passwords: only names are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<_> = self.client.config_map().into_keys().collect();
        f.debug_struct("KafkaSourceBuilder")
            .field("topics", &self.topics)
            .field("config", &self.config)
            .field("revoke_budget", &self.revoke_budget)
            .field("settings", &settings)
            .finish_non_exhaustive()
    }
}
