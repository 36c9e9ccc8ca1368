// Spell the groups of the vectors as the published engine does: node groups.mjs '[{"name": …, "partition": …}]'
import { sanitizeQueueToken, tenantGroup } from '@dudousxd/nestjs-durable-core';

const cases = JSON.parse(process.argv[2]);
const groups = cases.map(({ name, partition }) => tenantGroup(sanitizeQueueToken(name), partition ?? undefined));
console.log(JSON.stringify(groups));
