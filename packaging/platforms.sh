# The platforms that have archives, for scripts that source this: Rust's triple of each, what stands before the names of its binutils, and the compiler
# that links for it. Where Linux is the system of this machine, its tools have plain names.
declare -A triples=([linux-x86_64]=x86_64-unknown-linux-gnu [linux-aarch64]=aarch64-unknown-linux-gnu [windows-x86_64]=x86_64-pc-windows-gnu)
declare -A binutils=([linux-x86_64]=x86_64-linux-gnu- [linux-aarch64]=aarch64-linux-gnu- [windows-x86_64]=x86_64-w64-mingw32-)
declare -A linkers=([linux-x86_64]=x86_64-linux-gnu-gcc [linux-aarch64]=aarch64-linux-gnu-gcc [windows-x86_64]=x86_64-w64-mingw32-gcc-posix)
binutils[linux-$(uname -m)]='' linkers[linux-$(uname -m)]=cc

# The version of the library, and the name of a platform's archive.
version() { sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1; }
archive_of() {
    local name
    name=segno-$(version)-$1
    case $1 in windows-*) echo "$name.zip" ;; *) echo "$name.tar.gz" ;; esac
}

# The date of everything that is packed: that of the commit, if nobody names another.
epoch() { echo "${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"; }
