package segno

// #include <segno.h>
import "C"

// DeviceKind is what computes.
type DeviceKind int32

// Kinds of devices.
const (
	DeviceAuto DeviceKind = C.SEGNO_DEVICE_AUTO // a GPU where the library can use one, otherwise the processor
	DeviceCPU  DeviceKind = C.SEGNO_DEVICE_CPU
	DeviceCUDA DeviceKind = C.SEGNO_DEVICE_CUDA
)

// DeviceInfo describes a device; memory in bytes.
type DeviceInfo struct {
	Kind              DeviceKind
	Name              string
	MemoryTotal       uint64
	MemoryFree        uint64
	ComputeCapability int // of a GPU, as in 90 for 9.0
	DriverVersion     int // of a GPU, as in 13000 for CUDA 13.0
}

// DeviceCount returns the number of devices of a kind.
func DeviceCount(kind DeviceKind) (int, error) {
	var count C.int32_t
	var detail *C.segno_error
	err := take(C.segno_device_count(C.int32_t(kind), &count, &detail), detail)
	return int(count), err
}

// Device describes device number index of a kind.
func Device(kind DeviceKind, index int) (DeviceInfo, error) {
	var info C.segno_device_info
	var detail *C.segno_error
	status := C.segno_device_info_get(C.int32_t(kind), C.int32_t(index), &info, C.sizeof_segno_device_info, &detail)
	if err := take(status, detail); err != nil {
		return DeviceInfo{}, err
	}
	return DeviceInfo{DeviceKind(info.kind), C.GoString(&info.name[0]), uint64(info.memory_total), uint64(info.memory_free),
		int(info.compute_capability), int(info.driver_version)}, nil
}
