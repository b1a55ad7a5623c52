# Debian's packages, the vcpkg port and the Conan recipe of Linux on this processor; for check.sh, which has the functions and names that stand here.

debian_packages() {
    local libdir="$work/debian/usr/lib/x86_64-linux-gnu" package
    for package in "$work"/out/*.deb; do
        dpkg-deb -x "$package" "$work/debian"
        # What the package says of itself, and that its files are as it says.
        dpkg-deb -e "$package" "$work/control"
        (cd "$work/debian" && md5sum --quiet -c "$work/control/md5sums") || fail "$package: sums of files are wrong"
        [ "$(dpkg-deb -f "$package" Architecture)" = amd64 ] || fail "$package is not for amd64"
    done
    for package in libsegno.so libsegno.a; do cmp "$libdir/$package" "$prefix/lib/$package"; done
    cmp "$work/debian/usr/include/segno.h" "$prefix/include/segno.h"
    [ "$(dpkg-deb -f "$work"/out/libsegno-dev_*.deb Depends | cut -d, -f 1)" = "libsegno0 (= $(dpkg-deb -f "$work"/out/libsegno0_*.deb Version))" ] ||
        fail "libsegno-dev does not ask for its own libsegno0"
    # Below a folder of its own, and not where the loader looks.
    runner=(env "LD_LIBRARY_PATH=$libdir")
    with_pkg_config "$libdir/pkgconfig"
    runner=()
}

# The port, with what it asks of vcpkg done by CMake alone (vcpkg.cmake).
vcpkg_port() {
    cmake -DPORT_FOLDER="$work/out/vcpkg/segno" -DCURRENT_PACKAGES_DIR="$work/vcpkg" -DBUILD="$work/vcpkg-build" \
        -P "$root/tests/release/vcpkg.cmake" > "$work/log" 2>&1 || { cat "$work/log"; fail "the vcpkg port fails"; }
    with_cmake "$work/vcpkg" OFF
}

conan_recipe() {
    local conan
    conan=$("$root/tests/pypi.sh" conan conan "$build")
    [ -n "$conan" ] || return 0
    export CONAN_HOME=$work/conan-home
    mkdir -p "$work/conan"
    {
        "$conan" profile detect && "$conan" create "$work/out/conan" &&
            (cd "$work/conan" && "$conan" install --requires="segno/$version" --generator CMakeDeps --generator CMakeToolchain)
    } > "$work/log" 2>&1 || { cat "$work/log"; fail "conan does not take the recipe"; }
    cmake+=(-DCMAKE_TOOLCHAIN_FILE="$work/conan/conan_toolchain.cmake")
    with_cmake "$work/conan" OFF
}

(cd "$root" && packaging/recipes.sh "$work/out")
(cd "$work/out" && sha256sum --quiet -c SHA256SUMS) || fail "SHA256SUMS is wrong"
debian_packages
vcpkg_port
conan_recipe
