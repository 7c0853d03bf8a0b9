//! The handler, and its own book of what it did. The table at the end is made from this and from offsets read by
//! another client, not from the library's books.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

pub(crate) struct Shop {
    /// For each partition the offsets that hold orders when the program starts, from the first to be read.
    orders: BTreeMap<i32, std::ops::Range<i64>>,
    book: Mutex<Book>,
    half_handled: Notify,
    all_handled: Notify,
}

#[derive(Default)]
struct Book {
    /// How often each order was handled to the end.
    handled: HashMap<(i32, i64), u32>,
    attempts: HashMap<(i32, i64), u32>,
    /// The order of each customer that is being handled.
    running: HashMap<Vec<u8>, (i32, i64)>,
    /// The last order of each customer in each partition that was begun.
    begun: HashMap<(i32, Vec<u8>), i64>,
    overlaps: u64,
    out_of_order: u64,
    /// Orders of an earlier run that took more than one attempt.
    retried: usize,
}

#[derive(Debug)]
pub(crate) struct Declined;

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the card was declined")
    }
}

impl std::error::Error for Declined {}

impl Shop {
    pub(crate) fn new(orders: BTreeMap<i32, std::ops::Range<i64>>) -> Self {
        Shop {
            orders,
            book: Mutex::default(),
            half_handled: Notify::new(),
            all_handled: Notify::new(),
        }
    }

    /// Charges an order: a few milliseconds for most, 150 ms for one in a hundred; the first attempt at one in five
    /// hundred hangs.
    pub(crate) async fn charge(
        &self,
        partition: i32,
        offset: i64,
        customer: Option<&[u8]>,
    ) -> Result<(), Declined> {
        let place = (partition, offset);
        let (attempt, _running) = self.begin(place, customer.unwrap_or_default());
        let time = match offset {
            o if o % 500 == 250 && attempt == 1 => Duration::from_secs(3600),
            o if o % 100 == 99 => Duration::from_millis(150),
            o => Duration::from_millis(1 + o.unsigned_abs() % 5),
        };
        sleep(time).await;
        self.end(place);
        Ok(())
    }

    fn begin(&self, place: (i32, i64), customer: &[u8]) -> (u32, Running<'_>) {
        let mut book = self.book.lock().unwrap();
        let attempt = book.attempts.entry(place).or_default();
        *attempt += 1;
        let attempt = *attempt;
        if book.running.insert(customer.to_vec(), place).is_some() {
            book.overlaps += 1;
        }
        let before = book.begun.insert((place.0, customer.to_vec()), place.1);
        if before.is_some_and(|before| before > place.1) {
            book.out_of_order += 1;
        }
        let customer = customer.to_vec();
        (
            attempt,
            Running {
                shop: self,
                customer,
            },
        )
    }

    fn end(&self, place: (i32, i64)) {
        let mut book = self.book.lock().unwrap();
        *book.handled.entry(place).or_default() += 1;
        let handled = book.handled.len();
        drop(book);
        if handled == self.produced() / 2 {
            self.half_handled.notify_one();
        }
        if handled >= self.produced() {
            self.all_handled.notify_one();
        }
    }

    pub(crate) fn produced(&self) -> usize {
        self.orders
            .values()
            .map(|offsets| offsets.end - offsets.start)
            .sum::<i64>() as usize
    }

    pub(crate) fn partitions(&self) -> impl Iterator<Item = i32> {
        self.orders.keys().copied()
    }

    pub(crate) fn handled(&self) -> usize {
        self.book.lock().unwrap().handled.len()
    }

    /// The program begins anew: attempts and order are counted by run.
    pub(crate) fn restarted(&self) {
        let mut book = self.book.lock().unwrap();
        book.retried += book.attempts.values().filter(|&&n| n > 1).count();
        book.attempts.clear();
        book.begun.clear();
        book.running.clear();
    }

    pub(crate) async fn half_handled(&self) {
        self.half_handled.notified().await;
    }

    pub(crate) async fn all_handled(&self) {
        self.all_handled.notified().await;
    }

    pub(crate) async fn show_progress(self: std::sync::Arc<Self>) {
        loop {
            sleep(Duration::from_millis(500)).await;
            let (handled, running) = {
                let book = self.book.lock().unwrap();
                (book.handled.len(), book.running.len())
            };
            if handled + running == 0 {
                println!("waiting for the group to assign partitions");
                continue;
            }
            println!(
                "handled {handled:>6} of {}, {running} at work",
                self.produced()
            );
        }
    }

    /// Counts. `committed`: the next offset to read of each partition, read by another client.
    pub(crate) fn report(&self, committed: BTreeMap<i32, i64>) -> Report {
        let book = self.book.lock().unwrap();
        let is_handled =
            |partition: i32, offset: i64| book.handled.contains_key(&(partition, offset));
        let mut lost = 0;
        let mut partitions = Vec::new();
        for (&partition, orders) in &self.orders {
            let committed = committed.get(&partition).copied();
            let below = orders.start..committed.unwrap_or(orders.start);
            lost += below
                .filter(|&offset| !is_handled(partition, offset))
                .count();
            partitions.push((partition, committed, orders.end));
        }
        Report {
            produced: self.produced(),
            handled: book.handled.len(),
            twice: book.handled.values().filter(|&&times| times > 1).count(),
            retried: book.retried + book.attempts.values().filter(|&&n| n > 1).count(),
            lost,
            customers: book.begun.len(),
            order_broken: book.overlaps + book.out_of_order,
            partitions,
        }
    }
}

/// A customer's order is being handled: until this is dropped, which a deadline does as well.
struct Running<'a> {
    shop: &'a Shop,
    customer: Vec<u8>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.shop
            .book
            .lock()
            .unwrap()
            .running
            .remove(&self.customer);
    }
}

pub(crate) struct Report {
    produced: usize,
    handled: usize,
    twice: usize,
    retried: usize,
    /// Below the committed offset, and never handled: nobody will see them again.
    lost: usize,
    customers: usize,
    order_broken: u64,
    partitions: Vec<(i32, Option<i64>, i64)>,
}

impl Report {
    pub(crate) fn is_clean(&self) -> bool {
        self.lost == 0 && self.order_broken == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order_broken {
            0 => format!("kept ({} customers)", self.customers),
            broken => format!("broken {broken} times"),
        };
        writeln!(f, "produced         {:>8}", self.produced)?;
        writeln!(f, "handled          {:>8}", self.handled)?;
        writeln!(f, "handled twice    {:>8}", self.twice)?;
        writeln!(f, "retried          {:>8}", self.retried)?;
        writeln!(f, "lost             {:>8}", self.lost)?;
        writeln!(f, "order per key    {order:>8}")?;
        write!(f, "committed")?;
        for (partition, committed, end) in &self.partitions {
            let committed = committed.map_or("nothing".to_owned(), |offset| offset.to_string());
            write!(f, "\n  partition {partition}    {committed:>8} of {end}")?;
        }
        Ok(())
    }
}
