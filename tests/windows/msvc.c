/* The least host that another compiler's linker can join with the import library, without a C runtime: the program's
 * exit code is 42. */
#include <segno.h>

int start(void) { return segno_abi_version() == SEGNO_ABI_VERSION && segno_status_str(SEGNO_OK) != NULL ? 42 : 1; }
