import { defineConfig } from "vitest/config";

export default defineConfig({ test: { include: ["suite.test.js"], watch: false } });
