//! A context: one device with its threads, and the sink for diagnostics.

use super::device::Kind;
use crate::backend::Backend;
use crate::backend::cpu::{self, Cpu};
use crate::backend::cuda;
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
            return Err(cuda::refusal(options.device_index));
        }
        if options.device_index != 0 {
            return Err(Error::NotFound(format!("there is no cpu device {}; there is 1", options.device_index)));
        }
        let context = Context { backend: Cpu::new(&options.cpu)?, log: Mutex::new(log) };
        if options.device == Kind::Auto {
            context.log(LogLevel::Info, format_args!("cpu chosen: {}", cuda::refusal(0)));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Opens `device` and returns what was logged.
    fn open(device: Kind, device_index: usize) -> (Result<Context>, String) {
        let cpu = cpu::Options { threads: 1, precise: false, allow_avx512: true };
        let lines = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&lines);
        let sink: LogSink = Box::new(move |_, line| *copy.lock().unwrap() += &format!("{line}\n"));
        let context = Context::new(&Options { device, device_index, cpu }, Some(sink));
        let lines = lines.lock().unwrap().clone();
        (context, lines)
    }

    #[test]
    fn an_automatic_choice_says_why_it_took_the_processor() {
        let (context, lines) = open(Kind::Auto, 0);
        assert!(context.is_ok());
        let reason = cuda::refusal(0).to_string();
        assert!(lines.starts_with(&format!("cpu chosen: {reason}\n")) && reason.len() > 20, "{lines}");
    }

    #[test]
    fn who_asks_for_the_processor_hears_nothing_of_gpus() {
        let (context, lines) = open(Kind::Cpu, 0);
        assert!(context.is_ok() && !lines.contains("cuda") && !lines.contains("nvidia"), "{lines}");
    }

    #[test]
    fn who_asks_for_a_gpu_never_gets_the_processor() {
        for index in [0, 4096] {
            let (context, lines) = open(Kind::Cuda, index);
            assert!(matches!(context.err(), Some(Error::Unsupported(_) | Error::NotFound(_))), "device {index}");
            assert!(lines.is_empty());
        }
    }
}
