//! How much is taken at most.

use tower_consumer::Message;
use tower_consumer::source::Source;

use crate::member::{Gate, Log, Member};
use crate::mock::{Mock, Produced};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_a_window_is_taken_beyond_what_is_committed() {
    let mock = Mock::new(&[("orders", 2)]);
    mock.produce("orders", 0, 30);
    let log = Log::new();
    let gate = Gate::new(|message| message.partition() == 1);
    let source = mock.source("billing").topics(["orders"]).window(10);
    let member = Member::start_gated(1, source.build().unwrap(), &log, &gate);
    let mut seen = 0;
    // what comes on the other partition shows that the first was asked for more meanwhile
    let mut until_window_is_full = async |count: usize| {
        log.until(format!("{count} of the first partition"), move |log| {
            log.begun_of(0).len() >= count
        })
        .await;
        mock.produce("orders", 1, 1);
        seen += 1;
        log.until("the other partition", move |log| {
            log.begun_of(1).len() == seen
        })
        .await;
        assert_eq!(log.begun_of(0).len(), count);
    };

    until_window_is_full(10).await;
    gate.open_for(|message| message.partition() == 1 || message.offset() < 5);
    until_window_is_full(15).await;
    // 5 alone holds the watermark: what is finished behind it makes no room
    gate.open_for(|message| message.partition() == 1 || message.offset() != 5);
    log.until("all but one", |log| log.handled().len() == 14 + 2)
        .await;
    until_window_is_full(15).await;
    assert_eq!(mock.committed("billing", "orders", 0), Some(5));
    assert_eq!(member.books.head("orders", 0).unwrap().offset, 5);

    gate.open();
    log.until_handled(30 + 3).await;
    member.stop().await.unwrap();
    assert_eq!(mock.committed("billing", "orders", 0), Some(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_of_one_hands_out_one_message_at_a_time() {
    let mock = Mock::new(&[("orders", 1)]);
    mock.produce("orders", 0, 20);
    let log = Log::new();
    let source = mock.source("billing").topics(["orders"]).window(1);
    let source = source.build().unwrap();
    let books = source.books().clone();
    let member = Member::start_with(1, source, &log, move |message: Message| {
        // everything before it is committed, not only finished
        let committed = books.committed("orders", 0).unwrap_or(0);
        let offset = message.offset();
        async move {
            match committed == offset {
                true => Ok(()),
                false => Err(format!("{offset} while committed is {committed}").into()),
            }
        }
    });
    log.until_handled(20).await;
    member.stop().await.unwrap();
    assert_eq!(mock.committed("billing", "orders", 0), Some(20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_fill_a_window_too_and_one_message_may_overshoot() {
    let mock = Mock::new(&[("orders", 2)]);
    let payload = [b'x'; 60];
    let message = Produced {
        payload: Some(&payload),
        ..Produced::default()
    };
    mock.produce_all("orders", [message; 6]);
    let log = Log::new();
    let gate = Gate::new(|message| message.partition() == 1);
    let source = mock.source("billing").topics(["orders"]).window_bytes(100);
    let member = Member::start_gated(1, source.build().unwrap(), &log, &gate);
    log.until_begun(2).await;
    mock.produce("orders", 1, 1);
    log.until_handled(1).await;
    assert_eq!(log.begun_of(0), [0, 1]);
    assert!(member.books.in_flight().1 >= 120);
    gate.open();
    log.until_handled(7).await;
    member.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_flight_is_bounded_over_all_partitions_and_each_has_a_share_of_one() {
    let mock = Mock::new(&[("orders", 6)]);
    for partition in 0..6 {
        mock.produce("orders", partition, 5);
    }
    let log = Log::new();
    let gate = Gate::closed();
    let source = mock.source("billing").topics(["orders"]).in_flight(4);
    let member = Member::start_gated(1, source.build().unwrap(), &log, &gate);
    let shares = |log: &Log| (0..6).map(|p| log.begun_of(p).len()).collect::<Vec<_>>();
    log.until("one of each partition", move |log| {
        !shares(log).contains(&0)
    })
    .await;
    // 4, and one each for the partitions that came too late for a part in it
    assert!(log.begun().len() <= 4 + 5, "{:?}", shares(&log));
    assert_eq!(member.books.in_flight().0 as usize, log.begun().len());

    gate.open();
    log.until_handled(30).await;
    member.stop().await.unwrap();
    for partition in 0..6 {
        assert_eq!(mock.committed("billing", "orders", partition), Some(5));
    }
}
