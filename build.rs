//! Link settings of the shared library, and the CUDA kernels: the `.cu` files below `kernels/` become compressed fatbins that the library embeds, and
//! its catalogue of kernels (`kernels/catalogue.rs`).
//!
//! On Linux the shared library's SONAME follows the ABI number, and it stays mapped until the process ends. nvcc is looked for in `NVCC`,
//! `CUDA_HOME`, `.cuda/` (filled by `make cuda`) and `PATH`; without one the library is built without kernels. `SEGNO_CUDA_ARCH` lists the targets,
//! as in the default `sm_90a,compute_80`: machine code for `sm_`, code that the driver compiles when it loads for `compute_`. A kernel that spills
//! registers or keeps arrays in local memory fails the build; `registers.txt` in the output folder tells what each one uses. Fatbins are kept
//! in `kernels/` of the target folder under a hash of all that they are made from, so that every profile shares them.

#[path = "kernels/catalogue.rs"]
mod catalogue;

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

const KERNELS: &str = "kernels";
const DEFAULT_ARCH: &str = "sm_90a,compute_80";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    link(&env::var("CARGO_CFG_TARGET_OS").expect("cargo tells the system"));
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        embed_kernels();
    }
}

/// How the shared library is linked for a system.
fn link(system: &str) {
    let arguments: &[&str] = match system {
        // Worker threads may still be leaving when a host closes the library. On Windows it pins itself (src/os/windows.rs).
        "linux" | "android" => &["-Wl,-soname,libsegno.so.0", "-Wl,-z,nodelete"],
        // The same bytes whenever it is linked.
        "windows" => &["-Wl,--no-insert-timestamp"],
        "macos" => &["-Wl,-install_name,@rpath/libsegno.0.dylib"],
        _ => &[],
    };
    arguments.iter().for_each(|argument| println!("cargo::rustc-cdylib-link-arg={argument}"));
    hide_foreign(system);
}

/// Names that a crate exports for hosts of its own; rustc would export them from the shared library too. `tests/abi/library.sh` finds what is
/// missing. Builds for other systems are linked by `packaging/linker.sh`, which leaves them out.
const FOREIGN: &str = include_str!("packaging/foreign-symbols.txt");

/// Keeps those names inside the library, where the linker is LLVM's: of two scripts it lets an exact local name win, GNU's takes only one.
fn hide_foreign(system: &str) {
    println!("cargo::rerun-if-changed=packaging/foreign-symbols.txt");
    let target = env::var("TARGET").expect("cargo tells the target");
    if system != "linux" || target != "x86_64-unknown-linux-gnu" {
        return;
    }
    let path = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("foreign.map");
    let names: String = FOREIGN.lines().map(|name| format!("{name};\n")).collect();
    fs::write(&path, format!("{{ local:\n{names}}};\n")).expect("OUT_DIR can be written");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
}

fn embed_kernels() {
    println!("cargo::rerun-if-changed=kernels");
    for variable in ["NVCC", "CUDA_HOME", "SEGNO_CUDA_ARCH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    write_catalogue(&out);
    let (mut table, mut registers) = (String::from("pub const MODULES: &[(&str, &[u8])] = &[\n"), String::new());
    match find_nvcc() {
        Some(nvcc) => {
            // OUT_DIR is PROFILE/build/PACKAGE/out inside the target folder.
            let kept = out.ancestors().nth(4).expect("OUT_DIR is in a target folder").join("kernels");
            fs::create_dir_all(&kept).expect("the target folder can be written");
            for Compiled { name, fatbin, report } in compile_all(&nvcc, &kept) {
                table += &format!("    ({name:?}, include_bytes!({fatbin:?})),\n");
                registers += &report;
            }
        }
        None => {
            println!("cargo::warning=nvcc was not found: the library is built without cuda kernels (see `make cuda`)")
        }
    }
    fs::write(out.join("kernels.rs"), table + "];\n").expect("OUT_DIR can be written");
    fs::write(out.join("registers.txt"), registers).expect("OUT_DIR can be written");
}

/// The kernel files: those in the folders of `kernels/` whose programs ship.
fn sources() -> Vec<PathBuf> {
    let paths = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder of kernels");
        entries.map(|entry| entry.expect("an entry of the folder").path()).collect()
    };
    let folders = paths(Path::new(KERNELS)).into_iter().filter(|path| path.is_dir() && !path.ends_with("lab"));
    let files = folders.flat_map(|folder| paths(&folder));
    let mut sources: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|ext| ext == "cu")).collect();
    sources.sort();
    sources
}

/// A source and all that it includes from `kernels/`, whatever that includes too, in the order in which they are met.
fn with_headers(source: &Path) -> Vec<(PathBuf, String)> {
    let mut files = vec![source.to_owned()];
    let mut texts = Vec::new();
    while let Some(path) = files.get(texts.len()) {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for line in text.lines() {
            let Some(included) = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) else {
                continue;
            };
            let header = Path::new(KERNELS).join(included);
            if !files.contains(&header) {
                files.push(header);
            }
        }
        texts.push(text);
    }
    files.into_iter().zip(texts).collect()
}

/// Writes what the host knows of the kernels, from the same lists that they are made from.
fn write_catalogue(out: &Path) {
    let [types, kernels] = ["quant/types.def", "kernels.def"]
        .map(|name| fs::read_to_string(Path::new(KERNELS).join(name)).expect("a list of the catalogue"));
    fs::write(out.join("catalogue.rs"), catalogue::source(&types, &kernels)).expect("OUT_DIR can be written");
}

fn find_nvcc() -> Option<PathBuf> {
    let named = env::var_os("NVCC").map(PathBuf::from);
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
    let local = Some(PathBuf::from(".cuda/nvidia/cu13/bin/nvcc"));
    let found = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&found).map(|folder| folder.join("nvcc"));
    [named, home, local].into_iter().flatten().chain(on_path).find(|path| path.is_file())
}

/// A source file's kernels.
struct Compiled {
    name: String,
    fatbin: PathBuf,
    /// A line for every kernel and chip.
    report: String,
}

/// Compiles all files, as many at a time as cargo allows.
fn compile_all(nvcc: &Path, kept: &Path) -> Vec<Compiled> {
    let (sources, next) = (sources(), AtomicUsize::new(0));
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let work = || {
        let take = || sources.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(take).map(|source| compile(nvcc, source, kept)).collect::<Vec<Compiled>>()
    };
    let mut compiled: Vec<Compiled> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("the kernels compile")).collect()
    });
    compiled.sort_by(|a, b| a.name.cmp(&b.name));
    compiled
}

/// Compiles one file, unless that was done before.
fn compile(nvcc: &Path, source: &Path, kept: &Path) -> Compiled {
    let mut arguments: Vec<String> = [
        "-fatbin",
        "-O3",
        "-std=c++17",
        "-Xptxas",
        "-v",
        "-Xfatbin",
        "-compress-all",
        "-compress-mode=size",
        "-I",
        KERNELS,
    ]
    .map(String::from)
    .into();
    let targets = env::var("SEGNO_CUDA_ARCH").unwrap_or_else(|_| DEFAULT_ARCH.into());
    for target in targets.split(',') {
        let number = target.trim_start_matches("sm_").trim_start_matches("compute_");
        arguments.push(format!("-gencode=arch=compute_{number},code={target}"));
    }
    let name = source.file_stem().expect("a source has a name").to_string_lossy().into_owned();
    let mut hasher = DefaultHasher::new();
    (nvcc, &arguments, with_headers(source)).hash(&mut hasher);
    let stem = format!("{name}-{:016x}", hasher.finish());
    let (fatbin, report) = (kept.join(format!("{stem}.fatbin")), kept.join(format!("{stem}.txt")));
    // Another profile may be compiling the same file: whoever comes second waits for its result.
    let lock = fs::File::create(kept.join(format!("{name}.lock"))).expect("the target folder can be written");
    lock.lock().expect("a file of the target folder can be locked");
    if !fatbin.is_file() || !report.is_file() {
        // A whole result takes its place at once.
        let own = kept.join(format!("{stem}.{}", std::process::id()));
        let output = Command::new(nvcc).args(&arguments).arg(source).arg("-o").arg(&own).output();
        let output = output.expect("nvcc can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nvcc failed on {}:\n{text}", source.display());
        fs::write(&report, registers(source, &text)).expect("the target folder can be written");
        fs::rename(own, &fatbin).expect("the target folder can be written");
    }
    Compiled { name, fatbin, report: fs::read_to_string(report).expect("a report can be read") }
}

/// Registers of every kernel, from what the assembler tells; refuses local memory.
fn registers(source: &Path, text: &str) -> String {
    let (mut lines, mut kernel) = (String::new(), "");
    for line in text.lines() {
        if let Some((_, entry)) = line.split_once("Compiling entry function ") {
            kernel = entry;
        } else if let Some((_, used)) = line.split_once("Used ") {
            lines += &format!("{kernel}: {used}\n");
        } else if line.contains("bytes stack frame")
            && line.trim() != "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
        {
            panic!("{kernel} of {} uses local memory: {}", source.display(), line.trim());
        }
    }
    lines
}
