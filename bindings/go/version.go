package segno

// #include <stdlib.h>
// #include <segno.h>
import "C"

import "unsafe"

// Version returns the version of the library at run time, for example "0.1.0".
func Version() string { return C.GoString(C.segno_version_string()) }

// ABIVersion returns the ABI number of the library at run time.
func ABIVersion() int { return int(C.segno_abi_version()) }

// HasFeature tells whether a capability ("cuda", "avx2", "avx512", "neon" and others of segno.h) is compiled in and usable on this machine now.
func HasFeature(name string) bool {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	return C.segno_has_feature(cName) == 1
}
