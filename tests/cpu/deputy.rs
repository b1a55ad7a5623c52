//! The thread of submitted steps on a real machine: work once for each beginning, waits as long as asked, an end amid work.

use segno::engine::deputy::Deputy;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[test]
fn work_is_done_once_for_each_beginning_and_waited_for_as_long_as_asked() {
    let (orders, inbox) = mpsc::channel();
    let (outbox, done) = mpsc::channel();
    let inbox = Mutex::new(inbox);
    let deputy =
        Deputy::start("segno-test", false, move || outbox.send(inbox.lock().unwrap().recv()).unwrap()).unwrap();
    for round in 0..50 {
        deputy.begin();
        assert!(!deputy.wait(Some(Duration::ZERO)) && !deputy.wait(Some(Duration::from_micros(200))));
        orders.send(round).unwrap();
        assert!(deputy.wait(if round % 2 == 0 { None } else { Some(Duration::MAX) }));
        assert!(deputy.wait(Some(Duration::ZERO)), "it stays over until that is collected");
        deputy.collect();
        assert!(!deputy.wait(Some(Duration::ZERO)));
        assert_eq!(done.recv().unwrap(), Ok(round));
        assert!(done.try_recv().is_err());
    }
}

#[test]
fn a_deputy_that_is_dropped_ends_its_work_first() {
    let ended = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ended);
    let deputy = Deputy::start("segno-test", false, move || {
        count.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(20));
        count.fetch_add(1, Ordering::SeqCst);
    });
    let deputy = deputy.unwrap();
    deputy.begin();
    while ended.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(deputy);
    assert_eq!(ended.load(Ordering::SeqCst), 2);
    assert_eq!(Arc::strong_count(&ended), 1);
}
