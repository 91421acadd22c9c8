#include <vector>

#include "floors.h"

namespace {

#if CUDART_VERSION >= 13000
const auto get_edges = cudaGraphGetEdges;
const auto remove_edges = cudaGraphRemoveDependencies;
const auto add_edges = cudaGraphAddDependencies;
#else
const auto get_edges = cudaGraphGetEdges_v2;
const auto remove_edges = cudaGraphRemoveDependencies_v2;
const auto add_edges = cudaGraphAddDependencies_v2;
#endif

}  // namespace

int kvrope_graph_without_pdl(cudaGraph_t graph) {
  size_t count = 0;
  if (cudaError_t error = get_edges(graph, nullptr, nullptr, nullptr, &count)) return error;
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  if (cudaError_t error = get_edges(graph, from.data(), to.data(), data.data(), &count)) return error;
  for (size_t i = 0; i < count; ++i) {
    if (data[i].type != cudaGraphDependencyTypeProgrammatic) continue;
    if (cudaError_t error = remove_edges(graph, &from[i], &to[i], &data[i], 1)) return error;
    cudaGraphEdgeData full = {};
    if (cudaError_t error = add_edges(graph, &from[i], &to[i], &full, 1)) return error;
  }
  return cudaSuccess;
}
