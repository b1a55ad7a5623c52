//! A context: one device with its threads, and the sink for diagnostics.

use super::device::Kind;
use crate::backend::Backend;
use crate::backend::cpu::{self, Cpu};
use crate::error::{Error, Result};
use std::sync::{Mutex, PoisonError};

/// How serious a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something failed.
    Error = 0,
    /// Something works worse than it could.
    Warn = 1,
    /// What was chosen and loaded.
    Info = 2,
    /// Details for finding a fault.
    Debug = 3,
}

/// Where diagnostics go; called from any thread, one call at a time.
pub type LogSink = Box<dyn FnMut(LogLevel, &str) + Send>;

/// What a host can choose.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Kind of device.
    pub device: Kind,
    /// Which device of that kind.
    pub device_index: usize,
    /// How the processor is used.
    pub cpu: cpu::Options,
}

/// One device, ready for models.
pub struct Context {
    backend: Cpu,
    log: Mutex<Option<LogSink>>,
}

impl Context {
    /// Opens the device and starts its threads.
    pub fn new(options: &Options, log: Option<LogSink>) -> Result<Context> {
        if options.device == Kind::Cuda {
            return Err(Error::Unsupported("this library is built without cuda kernels; use the cpu".into()));
        }
        if options.device_index != 0 {
            return Err(Error::NotFound(format!("there is no cpu device {}; there is 1", options.device_index)));
        }
        let context = Context { backend: Cpu::new(&options.cpu)?, log: Mutex::new(log) };
        let (set, threads) = (context.backend.instruction_set(), context.backend.threads());
        context.log(LogLevel::Info, format_args!("cpu: {set}, {threads} threads"));
        Ok(context)
    }

    /// The device.
    pub fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    /// Hands a message to the host's sink, if there is one.
    pub fn log(&self, level: LogLevel, message: std::fmt::Arguments) {
        let mut sink = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = sink.as_mut() {
            sink(level, &message.to_string());
        }
    }
}
