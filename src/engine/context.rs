//! A context: one device with its threads, and the sink for diagnostics.

use super::callback;
use super::device::Kind;
use crate::backend::cpu::{self, Cpu, simd};
use crate::backend::{Backend, GpuOptions, cuda};
use crate::error::{Count, Error, Result};
use crate::os::usable_threads;
use crate::plan::Program;
use std::sync::{Arc, Mutex, PoisonError};

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
    #[allow(dead_code)] // A level of the C API: nothing is told at it today.
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
    /// Tells how many bytes of host memory can be taken now; none where nobody knows.
    pub free_memory: fn() -> Option<u64>,
    /// Whether memory is taken although there is not as much.
    pub overcommits: bool,
}

/// One device, ready for models.
pub struct Context {
    backend: Arc<dyn Backend>,
    /// Does what a GPU has no memory for, and takes the models that one cannot run where the host left the choice to the library.
    processor: Processor,
    falls_back: bool,
    host_argmax: bool,
    gives_way: bool,
    free_memory: fn() -> Option<u64>,
    overcommits: bool,
    load_threads: usize,
    /// Vector kernels of the host, whatever the device is.
    kernels: &'static simd::Kernels,
    log: Mutex<Option<LogSink>>,
}

/// The processor beside a GPU, opened for the first model that needs it.
struct Processor {
    options: Options,
    cpu: Mutex<Option<Arc<dyn Backend>>>,
}

impl Context {
    /// Opens the device and starts its threads.
    pub fn new(options: &Options, log: Option<LogSink>) -> Result<Context> {
        let (backend, lines) = match options.device {
            Kind::Cuda if options.cpu.precise => {
                return Err(Error::Unsupported("precise mode runs on the cpu only".into()));
            }
            Kind::Cuda => open_cuda(&options.gpu).map_err(advise)?,
            Kind::Cpu => open_cpu(options, Vec::new())?,
            Kind::Auto => open_best(options)?,
        };
        // Whatever was chosen, only a GPU refuses models.
        let (processor, falls_back) = (Processor::new(options), options.device == Kind::Auto);
        let Options { host_argmax, free_memory, overcommits, cpu: cpu::Options { gives_way, .. }, .. } = *options;
        let usable = usable_threads();
        let load_threads = if options.cpu.threads == 0 { usable } else { options.cpu.threads.min(usable) };
        let (kernels, log) = (simd::detect(options.cpu.allow_avx512), Mutex::new(log));
        let context = Context {
            backend,
            processor,
            falls_back,
            host_argmax,
            gives_way,
            free_memory,
            overcommits,
            load_threads,
            kernels,
            log,
        };
        let tell = || lines.iter().for_each(|(level, line)| context.log(*level, format_args!("{line}")));
        callback::run(callback::MAKING, tell);
        Ok(context)
    }

    /// The device for `program`: the context's own or, where that was an automatic choice and cannot run it, the processor. The log says why.
    pub fn backend_for(&self, program: &Program) -> Result<Arc<dyn Backend>> {
        let Err(refused) = self.backend.check(program) else { return Ok(Arc::clone(&self.backend)) };
        if !self.falls_back {
            return Err(advise(refused));
        }
        self.log(LogLevel::Info, format_args!("cpu chosen for this model: {refused}"));
        self.processor()
    }

    /// The processor beside the context's device.
    pub(super) fn processor(&self) -> Result<Arc<dyn Backend>> {
        let (cpu, lines) = self.processor.open()?;
        lines.iter().for_each(|(level, line)| self.log(*level, format_args!("{line}")));
        Ok(cpu)
    }

    /// Whether greedy tokens come from logits on the host.
    pub(super) fn host_argmax(&self) -> bool {
        self.host_argmax
    }

    /// Whether the threads that the library starts give way to others.
    pub fn gives_way(&self) -> bool {
        self.gives_way
    }

    /// Most threads that work while a model is loaded, the caller's included.
    pub(super) fn load_threads(&self) -> usize {
        self.load_threads
    }

    /// Vector kernels of the host.
    pub(super) fn kernels(&self) -> &'static simd::Kernels {
        self.kernels
    }

    /// Bytes of host memory that can be taken now; none where nobody knows.
    pub fn free_memory(&self) -> Option<u64> {
        (self.free_memory)()
    }

    /// Refuses what needs more host memory than can be taken, unless the host insists.
    pub fn require_memory(&self, needed: u64, what: &'static str) -> Result<()> {
        match self.free_memory() {
            Some(free) if needed > free && !self.overcommits => Err(Error::HostMemory { what, needed, free }),
            _ => Ok(()),
        }
    }

    /// Hands a message to the host's sink, if there is one. What the sink itself causes is not logged.
    pub fn log(&self, level: LogLevel, message: std::fmt::Arguments) {
        if self.is_calling() {
            return;
        }
        let mut sink = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = sink.as_mut() {
            self.calling(|| sink(level, &message.to_string()));
        }
    }

    /// Runs a callback of the host's.
    pub fn calling<T>(&self, f: impl FnOnce() -> T) -> T {
        callback::run(std::ptr::from_ref(self).addr(), f)
    }

    /// Whether the calling thread is inside a callback of this context.
    pub fn is_calling(&self) -> bool {
        callback::is_running(std::ptr::from_ref(self).addr())
    }
}

impl Processor {
    fn new(options: &Options) -> Processor {
        // The index is that of the GPU, and fast batches are its own.
        let gpu = GpuOptions { index: 0, fast_batches: false, ..options.gpu };
        Processor { options: Options { gpu, ..*options }, cpu: Mutex::new(None) }
    }

    /// The processor; what to log about it is told once.
    fn open(&self) -> Result<Opened> {
        let mut cpu = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cpu) = &*cpu {
            return Ok((Arc::clone(cpu), Vec::new()));
        }
        let (opened, lines) = open_cpu(&self.options, Vec::new())?;
        *cpu = Some(Arc::clone(&opened));
        Ok((opened, lines))
    }
}

/// A device, and what to log about it.
type Opened = (Arc<dyn Backend>, Vec<(LogLevel, String)>);

fn open_cuda(options: &GpuOptions) -> Result<Opened> {
    let place = if options.context == 0 { "" } else { ", in the host's context" };
    let backend = cuda::open(options)?;
    let lines = [format!("cuda: device {}{place}", options.index)].into_iter();
    let lines = lines.chain(backend.note().map(String::from)).map(|line| (LogLevel::Info, line)).collect();
    Ok((Arc::from(backend), lines))
}

/// Adds what who asked for a GPU can do without one. Who left the choice to the library has got it.
fn advise(error: Error) -> Error {
    match error {
        Error::Unsupported(reason) => Error::Unsupported(format!("{reason}{ADVICE}")),
        other => other,
    }
}

const ADVICE: &str = "; the cpu can be used instead";

fn open_best(options: &Options) -> Result<Opened> {
    if options.cpu.precise {
        return open_cpu(options, Vec::new());
    }
    match open_cuda(&options.gpu) {
        Ok(opened) => Ok(opened),
        // A mistake in the options is no lack of a device.
        Err(error @ Error::InvalidArgument(_)) => Err(error),
        Err(error) => open_cpu(options, vec![(LogLevel::Info, format!("cpu chosen: {error}"))]),
    }
}

fn open_cpu(options: &Options, mut lines: Vec<(LogLevel, String)>) -> Result<Opened> {
    if options.gpu.index != 0 {
        return Err(Error::NotFound(format!("there is no cpu device {}; there is 1", options.gpu.index)));
    }
    // Threads beyond the processors would only take turns, and wait for each other at every stage.
    let (wanted, usable) = (options.cpu.threads, usable_threads());
    if wanted > usable {
        let processors = Count(usable, "processor");
        let line = format!("n_threads is {wanted}, the process may use {processors}: as many threads compute");
        lines.push((LogLevel::Warn, line));
    }
    let cpu = Cpu::new(&cpu::Options { threads: wanted.min(usable), ..options.cpu })?;
    lines.push((LogLevel::Info, format!("cpu: {}, {}", cpu.instruction_set(), Count(cpu.threads(), "thread"))));
    if options.gpu.fast_batches {
        lines.push((LogLevel::Info, "fast batches are not in use: they need a gpu".into()));
    }
    Ok((Arc::new(cpu), lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn options(device: Kind, cpu: cpu::Options, gpu: GpuOptions) -> Options {
        Options { device, cpu, gpu, host_argmax: false, free_memory: || None, overcommits: false }
    }

    /// Opens `device` and returns what was logged.
    fn open(device: Kind, device_index: usize) -> (Result<Context>, String) {
        let cpu = cpu::Options { threads: 1, precise: false, allow_avx512: true, gives_way: false };
        let lines = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&lines);
        let sink: LogSink = Box::new(move |_, line| *copy.lock().unwrap() += &format!("{line}\n"));
        let gpu = GpuOptions { index: device_index, ..GpuOptions::default() };
        let context = Context::new(&options(device, cpu, gpu), Some(sink));
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
        // Advice is for those whose wish was refused.
        assert!(!lines.contains("the cpu can be used") && !lines.contains("use the cpu"), "{lines}");
        assert!(!lines.contains("1 threads"), "{lines}");
        if let (Err(Error::Unsupported(refused)), _) = open(Kind::Cuda, 0) {
            assert!(refused.ends_with(ADVICE), "{refused}");
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

    #[test]
    fn there_are_never_more_threads_than_processors() {
        let usable = usable_threads();
        for (wanted, computing) in [(usable, usable), (usable + 1, usable), (1000, usable)] {
            let cpu = cpu::Options { threads: wanted, precise: false, allow_avx512: true, gives_way: false };
            let lines = Arc::new(Mutex::new(Vec::new()));
            let copy = Arc::clone(&lines);
            let sink: LogSink = Box::new(move |level, line| copy.lock().unwrap().push((level, line.to_owned())));
            let gpu = GpuOptions::default();
            assert!(Context::new(&options(Kind::Cpu, cpu, gpu), Some(sink)).is_ok());
            let lines = lines.lock().unwrap();
            let (_, chosen) = lines.last().unwrap();
            assert!(chosen.ends_with(&format!(", {}", Count(computing, "thread"))), "{chosen}");
            let warned = lines.iter().any(|(level, line)| {
                *level == LogLevel::Warn
                    && line.contains(&format!("n_threads is {wanted}"))
                    && line.contains(&Count(usable, "processor").to_string())
            });
            assert_eq!(warned, wanted > usable, "{lines:?}");
        }
    }
}
