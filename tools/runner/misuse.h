// Mistakes that a caller can make and no size or pattern of a case expresses: a tensor of a wrong dtype, rank
// or device, one that is missing, or memory that two of them share. A case that makes one expects an error.
#pragma once

#include <optional>
#include <string>

#include "arguments.h"

namespace kvrope::regress {

class ObjectReader;

struct Misuse {
  enum class Fault {
    dtype,         // the tensor is fp64, which no argument takes
    rank,          // it has two dimensions more
    rows,          // it has one row more
    device,        // it is a meta tensor
    missing,       // it is undefined
    self_overlap,  // all its elements are one
    shared         // it shares its memory with the tensor `with`
  };
  std::string tensor;  // name of the argument
  Fault fault = Fault::dtype;
  std::string with;
};

// Reads {"tensor": ..., "fault": ..., "with": ...}. Throws FileError.
Misuse read_misuse(const ObjectReader& reader);

// Changes the arguments. Tensors that change are new ones: those of the case's buffers stay as they are.
// Throws std::invalid_argument where the call has no such tensor.
void apply_misuse(const Misuse& misuse, FusedArguments& arguments);

}  // namespace kvrope::regress
