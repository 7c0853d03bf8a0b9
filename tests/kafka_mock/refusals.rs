//! What `build` refuses, and that it says what was wrong and what to do. None of this asks a broker.

use std::time::Duration;

use rdkafka::ClientConfig;
use tower_consumer::ledger::ConfigError;
use tower_consumer::source::kafka::{BuildError, KafkaSource, KafkaSourceBuilder};

/// Nothing listens there.
const NOBODY: &str = "127.0.0.1:1";

fn builder() -> KafkaSourceBuilder {
    KafkaSource::builder(NOBODY, "billing").topics(["orders"])
}

fn config_of<const N: usize>(settings: [(&str, &str); N]) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (key, value) in settings {
        config.set(key, value);
    }
    config
}

#[track_caller]
fn refused(builder: KafkaSourceBuilder) -> BuildError {
    builder.build().expect_err("it is refused")
}

/// The text names each of these.
#[track_caller]
fn assert_says(error: &BuildError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

#[test]
fn commits_by_the_client_are_refused_in_every_spelling() {
    for key in ["enable.auto.commit", "enable.auto.offset.store"] {
        for value in ["true", "TRUE", "t", "1"] {
            let error = refused(builder().set(key, value));
            assert_eq!(error, BuildError::AutoCommit(key));
            assert_says(&error, &[key, "not finished", "leave it out"]);
        }
        assert!(builder().set(key, "false").build().is_ok());
    }
}

#[test]
fn a_group_is_asked_for() {
    let unset = KafkaSource::from_config(config_of([("bootstrap.servers", NOBODY)]));
    for builder in [unset.topics(["orders"]), builder().set("group.id", "")] {
        let error = refused(builder);
        assert_eq!(error, BuildError::NoGroup);
        assert_says(&error, &["group.id", "KafkaSource::builder"]);
    }
}

#[test]
fn a_broker_is_asked_for() {
    let unset = KafkaSource::from_config(config_of([("group.id", "billing")]));
    for builder in [
        unset.topics(["orders"]),
        builder().set("bootstrap.servers", ""),
    ] {
        let error = refused(builder);
        assert_eq!(error, BuildError::NoBootstrap);
        assert_says(&error, &["bootstrap.servers", "KafkaSource::builder"]);
    }
}

#[test]
fn the_old_name_of_the_brokers_is_taken_too() {
    let config = config_of([("metadata.broker.list", NOBODY), ("group.id", "billing")]);
    assert!(
        KafkaSource::from_config(config)
            .topics(["orders"])
            .build()
            .is_ok()
    );
}

#[test]
fn something_to_subscribe_to_is_asked_for() {
    let error = refused(KafkaSource::builder(NOBODY, "billing"));
    assert_eq!(error, BuildError::NoTopics);
    assert_says(&error, &[".topics(", ".pattern("]);
    assert_eq!(
        refused(KafkaSource::builder(NOBODY, "billing").topics([""; 0])),
        BuildError::NoTopics
    );
}

#[test]
fn an_empty_topic_or_pattern_is_refused() {
    for builder in [
        builder().topics([""]),
        builder().pattern(""),
        builder().pattern("^"),
    ] {
        let error = refused(builder);
        assert_eq!(error, BuildError::EmptyTopic);
        assert_says(&error, &["topic", "empty"]);
    }
}

#[test]
fn bounds_that_let_nothing_through_are_refused() {
    let window = [builder().window(0), builder().window_bytes(0)];
    for error in window.map(refused) {
        assert_eq!(error, BuildError::Bounds(ConfigError::ZeroWindow));
        assert_says(&error, &["window", "at least 1", "8,192"]);
    }
    let in_flight = [builder().in_flight(0), builder().in_flight_bytes(0)];
    for error in in_flight.map(refused) {
        assert_eq!(error, BuildError::Bounds(ConfigError::ZeroInFlight));
        assert_says(&error, &["in_flight", "at least 1", "10,000"]);
    }
    assert!(
        builder()
            .window(1)
            .window_bytes(1)
            .in_flight(1)
            .in_flight_bytes(1)
            .build()
            .is_ok()
    );
}

#[test]
fn a_revoke_budget_above_half_of_the_poll_interval_is_refused() {
    let short = || {
        builder()
            .set("session.timeout.ms", "6000")
            .set("max.poll.interval.ms", "6000")
    };
    let error = refused(short().revoke_budget(Duration::from_millis(3_001)));
    assert_eq!(
        error,
        BuildError::RevokeBudget {
            budget: Duration::from_millis(3_001),
            interval: Duration::from_secs(6),
            most: Duration::from_secs(3),
        }
    );
    assert_says(
        &error,
        &["3.001s", "max.poll.interval.ms", "6s", "at most 3s"],
    );
    assert!(
        short()
            .revoke_budget(Duration::from_secs(3))
            .build()
            .is_ok()
    );
    // the default of 5 s gives way by itself
    assert!(short().build().is_ok());
    // and is short of half of the client's own default, 300 s
    assert!(
        builder()
            .revoke_budget(Duration::from_secs(150))
            .build()
            .is_ok()
    );
    let error = refused(builder().revoke_budget(Duration::from_secs(151)));
    assert_says(&error, &["151s", "300s", "at most 150s"]);
}

#[test]
fn an_unknown_setting_is_refused_by_name() {
    let error = refused(builder().set("fetch.wait.max", "100"));
    let BuildError::Setting { key, value, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!((&**key, &**value), ("fetch.wait.max", "100"));
    assert_says(
        &error,
        &["\"fetch.wait.max\"", "No such configuration property"],
    );
}

#[test]
fn a_bad_value_is_refused_with_the_setting() {
    for (key, value) in [
        ("session.timeout.ms", "soon"),
        ("session.timeout.ms", "-1"),
        ("auto.offset.reset", "newest"),
        ("enable.auto.commit", "perhaps"),
        ("max.poll.interval.ms", "0"),
    ] {
        let error = refused(builder().set(key, value));
        assert!(matches!(error, BuildError::Setting { .. }), "{error:?}");
        assert_says(&error, &[key, value]);
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_both_names() {
    let error = refused(
        builder()
            .set("session.timeout.ms", "6000")
            .set("max.poll.interval.ms", "5000"),
    );
    assert!(matches!(error, BuildError::Client(_)), "{error:?}");
    assert_says(&error, &["max.poll.interval.ms", "session.timeout.ms"]);
}

#[test]
fn fetches_that_the_client_could_not_receive_are_refused() {
    let error = refused(
        builder()
            .set("fetch.max.bytes", "2000000")
            .set("receive.message.max.bytes", "1000000"),
    );
    assert!(matches!(error, BuildError::Client(_)), "{error:?}");
    assert_says(&error, &["receive.message.max.bytes", "fetch.max.bytes"]);
}

#[test]
fn the_new_group_protocol_refuses_settings_of_the_old_one() {
    let new = || builder().set("group.protocol", "consumer");
    for (key, value) in [
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "1000"),
        ("partition.assignment.strategy", "range"),
    ] {
        let error = refused(new().set(key, value));
        assert!(matches!(error, BuildError::Client(_)), "{error:?}");
        assert_says(&error, &[key]);
    }
    assert!(new().build().is_ok());
}

#[test]
fn a_source_is_built_from_settings_of_the_client() {
    let mut config = config_of([
        ("bootstrap.servers", NOBODY),
        ("group.id", "billing"),
        ("client.id", "billing-7"),
    ]);
    let source = KafkaSource::from_config(config.clone())
        .topics(["orders"])
        .build();
    assert!(source.is_ok());
    config.set("enable.auto.commit", "true");
    let error = refused(KafkaSource::from_config(config).topics(["orders"]));
    assert_eq!(error, BuildError::AutoCommit("enable.auto.commit"));
}

#[test]
fn passwords_are_shown_nowhere() {
    let secrets = [
        ("sasl.password", "hunter2"),
        ("ssl.key.password", "hunter2"),
        ("ssl.keystore.password", "hunter2"),
        ("sasl.oauthbearer.client.secret", "hunter2"),
        ("ssl.key.pem", "-----BEGIN PRIVATE KEY----- hunter2"),
    ];
    for (key, secret) in secrets {
        let builder = builder().set(key, secret);
        let shown = format!("{builder:?}");
        assert!(shown.contains(key), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        // a build without TLS refuses some of them
        let shown = match builder.build() {
            Ok(source) => format!("{source:?}"),
            Err(error) => format!("{error:?} {error}"),
        };
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
