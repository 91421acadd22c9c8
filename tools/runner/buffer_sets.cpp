#include "runner/buffer_sets.h"

#include <ATen/Functions.h>

#include <map>

namespace kvrope::regress {
namespace {

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

at::Tensor bytes_of_memory(const at::Tensor& tensor) {
  at::Tensor bytes = at::empty({0}, tensor.options().dtype(at::kByte));
  return bytes.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
}

void for_each_tensor(FusedArguments& arguments, const std::function<void(at::Tensor&)>& visit) {
  for (at::Tensor* tensor :
       {&arguments.q, &arguments.k, &arguments.v, &arguments.key_cache, &arguments.value_cache,
        &arguments.slot_mapping, &arguments.pos, &arguments.cos_sin}) {
    visit(*tensor);
  }
  for (std::optional<at::Tensor>* tensor :
       {&arguments.k_scale, &arguments.v_scale, &arguments.q_scale, &arguments.offs, &arguments.q_out,
        &arguments.k_out, &arguments.zeros_out, &arguments.swa_slot_mapping, &arguments.q_weight,
        &arguments.k_weight}) {
    if (*tensor) visit(**tensor);
  }
}

int64_t held_bytes(const FusedArguments& arguments) {
  std::map<const c10::StorageImpl*, int64_t> sizes;
  FusedArguments all = arguments;
  for_each_tensor(all, [&](at::Tensor& tensor) {
    sizes[memory_of(tensor)] = static_cast<int64_t>(tensor.storage().nbytes());
  });
  int64_t sum = 0;
  for (const auto& [memory, bytes] : sizes) sum += bytes;
  return sum;
}

FusedArguments copy_of(const FusedArguments& arguments, c10::Device device, const at::Tensor& keep) {
  std::map<const c10::StorageImpl*, at::Tensor> copies;
  FusedArguments copy = arguments;
  for_each_tensor(copy, [&](at::Tensor& tensor) {
    if (keep.defined() && memory_of(tensor) == memory_of(keep)) return;
    at::Tensor& bytes = copies[memory_of(tensor)];
    if (!bytes.defined()) bytes = bytes_of_memory(tensor).to(device, at::kByte, false, true);
    at::Tensor view = at::empty({0}, bytes.options().dtype(tensor.scalar_type()));
    view.set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    tensor = view;
  });
  return copy;
}

}  // namespace kvrope::regress
