package segno

// The only place that says how to compile and link.

/*
#cgo !segno_static pkg-config: segno
#cgo segno_static pkg-config: segno-static
#include <segno.h>

#if SEGNO_ABI_VERSION != 0
#error "these bindings were written for ABI number 0"
#endif
*/
import "C"
