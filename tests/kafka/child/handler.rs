//! The handler of both programs: does what its behaviour says, and writes the ledger when it succeeds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::{future, str};

use thiserror::Error;

use super::Event;
use crate::ledger::{Position, Writer};
use crate::plan::{Act, Behaviour, Plan};

#[derive(Clone, Debug)]
pub(crate) struct Handler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    ledger: Writer,
    attempts: Mutex<HashMap<Position, usize>>,
}

#[derive(Debug, Error)]
#[error("the handler fails, as its behaviour says")]
pub(crate) struct Failed;

impl Handler {
    pub(crate) fn new(plan: &Plan) -> Self {
        let shared = Shared {
            behaviour: plan.setup.behaviour,
            ledger: Writer::append_to(&plan.ledger, plan.run).unwrap(),
            attempts: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// One attempt.
    pub(crate) async fn handle(
        &self,
        (partition, offset): Position,
        key: Option<&[u8]>,
    ) -> Result<(), Failed> {
        Event::Started { partition, offset }.print();
        match self
            .shared
            .behaviour
            .act(offset, self.attempt((partition, offset)))
        {
            Act::Succeed => {}
            Act::SucceedAfter(time) => tokio::time::sleep(time).await,
            Act::Fail => return Err(Failed),
            Act::NeverEnd => future::pending().await,
        }
        let key = key.map_or("-", |key| str::from_utf8(key).unwrap());
        self.shared
            .ledger
            .processed((partition, offset), key)
            .unwrap();
        Event::Processed { partition, offset }.print();
        Ok(())
    }

    /// Which attempt this is, from 1.
    fn attempt(&self, position: Position) -> usize {
        let mut attempts = self.shared.attempts.lock().unwrap();
        let attempt = attempts.entry(position).or_default();
        *attempt += 1;
        *attempt
    }
}
