"""The noise of each step, C^-1 Z, with numpy alone: generator, engines, normals, regions, recurrences, checkpoints."""
