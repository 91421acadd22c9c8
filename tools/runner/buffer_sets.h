// Several sets of the tensors of one call, for calls that are to find other memory each time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "arguments.h"

namespace kvrope::regress {

// Calls `visit` with every tensor of the arguments that is there.
void for_each_tensor(FusedArguments& arguments, const std::function<void(at::Tensor&)>& visit);

// All of the memory that a tensor lies in.
at::Tensor bytes_of_memory(const at::Tensor& tensor);

// Bytes of the memory that the tensors lie in, each piece of memory once.
int64_t held_bytes(const FusedArguments& arguments);

// The same call on a device in copies of its memory: views of one buffer are views of one buffer again.
// `keep` is shared instead of copied where it is defined.
FusedArguments copy_of(const FusedArguments& arguments, c10::Device device, const at::Tensor& keep = {});

}  // namespace kvrope::regress
