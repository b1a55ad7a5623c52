//! The embedded kernels, loaded into a context, and the stream and graphs that run them.
//!
//! [`Stream::launch`] and [`Graph::new`] take the same launches: one starts them, the other makes a node of each.

use super::args::Shape;
use super::catalogue::{Function, Kernel, NATIVE_FILES};
use super::draws;
use super::driver::{Primary, Waited, check, hear, is_idle};
use super::launch::Launch;
use super::select::{Choice, Device};
use crate::error::{Error, Result, reserve};
use cudarc::driver::sys::{
    self, CUevent, CUfunction, CUfunction_attribute, CUgraph, CUgraphExec, CUgraphNode, CUmodule, CUresult, CUstream,
};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// Whether kernels were compiled into this library.
pub fn is_built() -> bool {
    !MODULES.is_empty()
}

/// All kernels of a context.
pub struct Kernels {
    /// Those of each family, in the order of [`Kernel::ALL`].
    functions: Vec<Vec<CUfunction>>,
    modules: Vec<CUmodule>,
    primary: Arc<Primary>,
    /// Whether the kernels wait for their producers themselves, so that a graph may start them early.
    programmatic: bool,
    /// Whether those of 16-bit floats are among them.
    f16: bool,
}

// SAFETY: handles that any thread may use while the context is current on it.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads every kernel; the context must be current.
    pub fn load(primary: &Arc<Primary>) -> Result<Kernels> {
        let primary = Arc::clone(primary);
        let mut kernels =
            Kernels { functions: Vec::new(), modules: Vec::new(), primary, programmatic: true, f16: true };
        for (_, image) in MODULES {
            let mut module: CUmodule = null_mut();
            // SAFETY: the image is a whole fatbin, embedded by the build.
            check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
            kernels.modules.push(module);
        }
        let most_shared = kernels.primary.device().shared_memory()?;
        for kernel in Kernel::ALL {
            let mut functions = reserve(kernel.variants().len(), "kernels")?;
            for entry in kernel.variants() {
                functions.push(kernels.load_function(entry.file, entry.name, most_shared)?);
            }
            kernels.functions.push(functions);
        }
        Ok(kernels)
    }

    /// A kernel, ready to have `most_shared` bytes of shared memory; null where there is none for this device.
    fn load_function(&mut self, file: &str, name: &'static str, most_shared: u32) -> Result<CUfunction> {
        let Some(function) = self.find(file, name)? else {
            self.f16 = false;
            return Ok(null_mut());
        };
        let mut version = 0;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        // SAFETY: a function of a loaded module.
        check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut version, attribute, function) })?;
        self.programmatic &= version >= 90;
        allow_shared_memory(function, most_shared as i32, file != "gemm_dp4a")?;
        Ok(function)
    }

    /// What selection knows of the device; kernels that were compiled for less than compute capability 9.0 have no bulk copies, wherever they run.
    pub fn device(&self) -> Result<Device> {
        let device = self.primary.device();
        Ok(Device { sms: device.processors()?, most_shared: device.shared_memory()?, bulk_copies: self.programmatic })
    }

    /// Whether there are kernels for 16-bit floats.
    pub fn has_f16(&self) -> bool {
        self.f16
    }

    /// A kernel; none where its file was compiled without it, as those of 16-bit floats may be.
    fn find(&self, file: &str, name: &'static str) -> Result<Option<CUfunction>> {
        let index = MODULES.iter().position(|(module, _)| *module == file);
        let module = index.ok_or_else(|| Error::Device(format!("kernel file {file} is not in this library")))?;
        let text = CString::new(name).map_err(|_| Error::Device(format!("kernel {name} is no name")))?;
        let mut function: CUfunction = null_mut();
        // SAFETY: the module is loaded; the name ends with NUL.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, self.modules[module], text.as_ptr()) };
        if NATIVE_FILES.contains(&file) && result == CUresult::CUDA_ERROR_NOT_FOUND {
            hear(name);
            return Ok(None);
        }
        check(name, result).map(|()| Some(function))
    }

    /// Blocks of the kernel that draws tokens of which the device runs as many at once; the context must be current.
    pub fn resident_draws(&self) -> Result<usize> {
        let (mut each, function) = (0, self.function(Kernel::Sample.only()));
        // SAFETY: a function of a loaded module, with no dynamic shared memory.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut each, function, draws::THREADS as i32, 0)
        })?;
        Ok(each.max(0) as usize * self.primary.device().processors()? as usize)
    }

    fn function(&self, function: Function) -> CUfunction {
        self.functions[function.kernel as usize][function.variant]
    }
}

/// Lets a kernel have all shared memory of a block. Kernels that share a processor must also divide its memory alike, or the next one
/// waits until the one before has left; `whole` gives shared memory all of it, and leaves little for a cache.
fn allow_shared_memory(function: CUfunction, most: i32, whole: bool) -> Result<()> {
    let mut own = 0;
    // SAFETY: a function of a loaded module.
    unsafe {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        check("cuFuncGetAttribute", sys::cuFuncGetAttribute(&mut own, attribute, function))?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        check("cuFuncSetAttribute", sys::cuFuncSetAttribute(function, attribute, most - own))?;
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        let percent = if whole { 100 } else { -1 };
        check("cuFuncSetAttribute", sys::cuFuncSetAttribute(function, attribute, percent))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(_current) = self.primary.enter() {
            // SAFETY: each module is unloaded once; whoever ran its kernels has waited for them.
            self.modules.iter().for_each(|&module| _ = check("cuModuleUnload", unsafe { sys::cuModuleUnload(module) }));
        }
    }
}

/// A queue of work.
pub struct Stream {
    raw: CUstream,
    kernels: Arc<Kernels>,
}

// SAFETY: a handle that any thread may use, and several at once.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A queue that waits for no other; the context must be current.
    pub fn new(kernels: &Arc<Kernels>) -> Result<Stream> {
        let mut raw: CUstream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current.
        check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&mut raw, flags, kernels.primary.stream_priority())
        })?;
        Ok(Stream { raw, kernels: Arc::clone(kernels) })
    }

    /// The kernels that it runs.
    pub fn kernels(&self) -> &Arc<Kernels> {
        &self.kernels
    }

    /// Starts one launch.
    pub fn launch(&self, launch: &Launch, shape: &Shape) -> Result<()> {
        let choice = launch.choose(shape);
        if !choice.runs() {
            return Ok(());
        }
        let Choice { function, blocks: [x, y, z], threads, shared_bytes } = choice;
        let mut params = [launch.args.pointer().cast_mut(), std::ptr::from_ref(shape).cast_mut().cast()];
        let function = self.kernels.function(function);
        // SAFETY: grid, block and arguments are those of the kernel; the driver copies the arguments before it returns.
        check("cuLaunchKernel", unsafe {
            let params = params.as_mut_ptr();
            sys::cuLaunchKernel(function, x, y, z, threads, 1, 1, shared_bytes, self.raw, params, null_mut())
        })
    }

    /// Starts the kernel that repacks `count` groups.
    pub fn repack(&self, args: &super::args::RepackArgs) -> Result<()> {
        let mut params: [*mut c_void; 1] = [std::ptr::from_ref(args).cast_mut().cast()];
        let blocks = args.count.div_ceil(256) as u32;
        let function = self.kernels.function(Kernel::Repack.only());
        // SAFETY: as in `launch`.
        check("cuLaunchKernel", unsafe {
            sys::cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, self.raw, params.as_mut_ptr(), null_mut())
        })
    }

    /// Starts a graph.
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both live; the graph's buffers have the same owner as the graph.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.exec, self.raw) })
    }

    /// Gives a graph its memory on the device, so that its first start takes none.
    pub fn upload_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both live.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(graph.exec, self.raw) })
    }

    /// Sets every byte of a stretch of device memory.
    #[cfg(feature = "testing")]
    pub fn fill(&self, to: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller owns the range.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(to, byte, bytes, self.raw) })
    }

    /// Notes in `event` when everything started here so far ends.
    pub fn record(&self, event: &Event) -> Result<()> {
        // SAFETY: both live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }

    /// Starts a copy to the device from memory that must stay as it is until [`Stream::wait`]; the driver takes what is not pinned through memory of
    /// its own.
    pub fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller owns both ranges.
        check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.raw) })
    }

    /// Starts a copy to pinned memory.
    pub fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller owns both ranges.
        check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.raw) })
    }

    /// Starts a copy on the device.
    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller owns both ranges.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) })
    }

    /// Holds back what is started here from now on, until the word at the device address `gate` is 1.
    pub fn hold(&self, gate: u64) -> Result<()> {
        let equal = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: the stream lives; the caller owns the word.
        check("cuStreamWaitValue32", unsafe { sys::cuStreamWaitValue32_v2(self.raw, gate, 1, equal) })
    }

    /// Waits until everything started here has ended, for as long as any call does.
    pub fn wait(&self) -> Result<()> {
        let primary = &self.kernels.primary;
        primary.wait(self.raw, primary.longest_wait(), &AtomicBool::new(false)).map(|_| ())
    }

    /// The same for `limit`, or until `cancel` is raised.
    pub fn wait_for(&self, limit: Duration, cancel: &AtomicBool) -> Result<Waited> {
        self.kernels.primary.wait(self.raw, limit, cancel)
    }

    /// Whether everything started here has ended; a failed kernel is an error.
    pub fn is_idle(&self) -> Result<bool> {
        is_idle(self.raw)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_current) = self.kernels.primary.enter() {
            // After a fault the work has ended too; a device that never answers keeps its stream.
            _ = self.wait();
            if !self.kernels.primary.is_lost() {
                // SAFETY: its work has ended; destroyed once.
                _ = check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(self.raw) });
            }
        }
    }
}

/// A moment in a stream.
pub struct Event {
    raw: CUevent,
    primary: Arc<Primary>,
}

// SAFETY: a handle that any thread may use.
unsafe impl Send for Event {}

impl Event {
    /// A moment that is not set yet; the context must be current.
    pub fn new(primary: &Arc<Primary>) -> Result<Event> {
        let mut raw: CUevent = null_mut();
        // SAFETY: a context is current.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, 0) })?;
        Ok(Event { raw, primary: Arc::clone(primary) })
    }

    /// Seconds since an earlier event; both have passed.
    pub fn since(&self, earlier: &Event) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both live.
        let result = unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) };
        check("cuEventElapsedTime", result).map(|()| f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.primary.enter() {
            // SAFETY: destroyed once.
            _ = check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(self.raw) });
        }
    }
}

/// A list of launches for one shape, ready to be started at once.
pub struct Graph {
    exec: CUgraphExec,
    kernels: Arc<Kernels>,
}

// SAFETY: a handle that any thread may use.
unsafe impl Send for Graph {}

impl Graph {
    /// Makes a chain of kernel nodes; the context must be current.
    pub fn new(kernels: &Arc<Kernels>, launches: &[Launch], shape: &Shape) -> Result<Graph> {
        let mut graph: CUgraph = null_mut();
        // SAFETY: a context is current.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
        let chained = chain(kernels, launches, shape, graph);
        let mut exec: CUgraphExec = null_mut();
        let made = chained.and_then(|()| {
            // SAFETY: the graph is whole.
            check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) })
        });
        // SAFETY: destroyed once; an instantiated graph lives on by itself.
        _ = check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) });
        made.map(|()| Graph { exec, kernels: Arc::clone(kernels) })
    }
}

fn chain(kernels: &Kernels, launches: &[Launch], shape: &Shape, graph: CUgraph) -> Result<()> {
    let mut last: CUgraphNode = null_mut();
    for launch in launches {
        let choice = launch.choose(shape);
        if !choice.runs() {
            continue;
        }
        let [x, y, z] = choice.blocks;
        let mut args = [launch.args.pointer().cast_mut(), std::ptr::from_ref(shape).cast_mut().cast()];
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: kernels.function(choice.function),
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: choice.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: choice.shared_bytes,
            kernelParams: args.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        let mut node: CUgraphNode = null_mut();
        // SAFETY: grid, block and arguments are those of the kernel; the driver copies the arguments.
        check("cuGraphAddKernelNode", unsafe {
            sys::cuGraphAddKernelNode_v2(&mut node, graph, std::ptr::null(), 0, &params)
        })?;
        if !last.is_null() {
            connect(graph, last, node, kernels.programmatic)?;
        }
        last = node;
    }
    Ok(())
}

fn connect(graph: CUgraph, from: CUgraphNode, to: CUgraphNode, programmatic: bool) -> Result<()> {
    // A programmatic edge: the producer's launch signal starts the consumer, which waits inside for the results.
    let kind = u8::from(programmatic);
    let edge = sys::CUgraphEdgeData { from_port: kind, to_port: 0, type_: kind, reserved: [0; 5] };
    // SAFETY: two nodes of this graph.
    check("cuGraphAddDependencies", unsafe { sys::cuGraphAddDependencies_v2(graph, &from, &to, &edge, 1) })
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_current) = self.kernels.primary.enter() {
            // SAFETY: destroyed once; the runner has waited for the last replay.
            _ = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.exec) });
        }
    }
}
