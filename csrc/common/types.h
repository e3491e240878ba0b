// The C interface's vocabulary: what a call returns and which element types it takes.
//
// Every entry point takes one pointer to a struct of its arguments and returns a Status. Python fills the
// struct with one struct.pack, which costs a tenth of what ctypes takes to convert as many arguments.
#pragma once

#include <cstdint>

namespace engine {

// Raised with every change of a struct or an entry point, so that Python refuses a library of another age.
constexpr int32_t kInterfaceVersion = 1;

// Mirrored in engine/kernels/native.py.
enum Status : int32_t {
  kOk = 0,
  kUnsupportedLevel = 1,
  kIndexOutOfRange = 2,
  kOutOfMemory = 3,
};

enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

// Calls f with a null pointer of the element type, so that a template can be chosen by it.
template <class F>
void with_element_type(int32_t dtype, F&& f) {
  if (dtype == kFloat32) {
    f(static_cast<float*>(nullptr));
  } else if (dtype == kBFloat16) {
    f(static_cast<BFloat16*>(nullptr));
  } else {
    f(static_cast<Float16*>(nullptr));
  }
}

}  // namespace engine

#define ENGINE_EXPORT extern "C" __attribute__((visibility("default")))
