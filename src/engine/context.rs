//! A context: one device with its threads, and the sink for diagnostics.

use super::device::Kind;
use crate::backend::cpu::{self, Cpu};
use crate::backend::{Backend, GpuOptions, cuda};
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
    /// How the processor is used.
    pub cpu: cpu::Options,
    /// How a GPU is used; its index is that of any kind of device.
    pub gpu: GpuOptions,
    /// Whether greedy tokens come from logits on the host, even where the device has found them.
    pub host_argmax: bool,
}

/// One device, ready for models.
pub struct Context {
    backend: Box<dyn Backend>,
    host_argmax: bool,
    log: Mutex<Option<LogSink>>,
}

impl Context {
    /// Opens the device and starts its threads.
    pub fn new(options: &Options, log: Option<LogSink>) -> Result<Context> {
        let (backend, lines) = match options.device {
            Kind::Cuda if options.cpu.precise => {
                return Err(Error::Unsupported("precise mode runs on the cpu only".into()));
            }
            Kind::Cuda => open_cuda(&options.gpu)?,
            Kind::Cpu => open_cpu(options, Vec::new())?,
            Kind::Auto => open_best(options)?,
        };
        let context = Context { backend, host_argmax: options.host_argmax, log: Mutex::new(log) };
        lines.iter().for_each(|line| context.log(LogLevel::Info, format_args!("{line}")));
        Ok(context)
    }

    /// The device.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Whether greedy tokens come from logits on the host.
    pub(super) fn host_argmax(&self) -> bool {
        self.host_argmax
    }

    /// Hands a message to the host's sink, if there is one.
    pub fn log(&self, level: LogLevel, message: std::fmt::Arguments) {
        let mut sink = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = sink.as_mut() {
            sink(level, &message.to_string());
        }
    }
}

/// A device, and what to log about it.
type Opened = (Box<dyn Backend>, Vec<String>);

fn open_cuda(options: &GpuOptions) -> Result<Opened> {
    let place = if options.context == 0 { "" } else { ", in the host's context" };
    let backend = cuda::open(options)?;
    let lines = [format!("cuda: device {}{place}", options.index)].into_iter();
    let lines = lines.chain(backend.note().map(String::from)).collect();
    Ok((backend, lines))
}

fn open_best(options: &Options) -> Result<Opened> {
    if options.cpu.precise {
        return open_cpu(options, Vec::new());
    }
    match open_cuda(&options.gpu) {
        Ok(opened) => Ok(opened),
        // A mistake in the options is no lack of a device.
        Err(error @ Error::InvalidArgument(_)) => Err(error),
        Err(error) => open_cpu(options, vec![format!("cpu chosen: {error}")]),
    }
}

fn open_cpu(options: &Options, mut lines: Vec<String>) -> Result<Opened> {
    if options.gpu.index != 0 {
        return Err(Error::NotFound(format!("there is no cpu device {}; there is 1", options.gpu.index)));
    }
    let cpu = Cpu::new(&options.cpu)?;
    lines.push(format!("cpu: {}, {} threads", cpu.instruction_set(), cpu.threads()));
    if options.gpu.fast_batches {
        lines.push("fast batches are not in use: they need a gpu".into());
    }
    Ok((Box::new(cpu), lines))
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
        let gpu = GpuOptions { index: device_index, ..GpuOptions::default() };
        let context = Context::new(&Options { device, cpu, gpu, host_argmax: false }, Some(sink));
        let lines = lines.lock().unwrap().clone();
        (context, lines)
    }

    #[test]
    fn an_automatic_choice_says_what_it_took_and_why() {
        let (context, lines) = open(Kind::Auto, 0);
        assert!(context.is_ok());
        match cuda::open(&GpuOptions::default()) {
            Ok(_) => assert!(lines.starts_with("cuda: "), "{lines}"),
            Err(reason) => assert!(lines.starts_with(&format!("cpu chosen: {reason}\n")), "{lines}"),
        }
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
            let refused = matches!(context.err(), Some(Error::Unsupported(_) | Error::NotFound(_)));
            assert!(if refused { lines.is_empty() } else { lines.starts_with("cuda: ") }, "{lines}");
        }
    }
}
